"""GET /v1/jobs: the same stream again, from any of its events on."""

from typing import Any

import pytest

from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.echo import SLOW
from tests.support.event_stream import SentEvent, event_stream
from tests.support.gateway import Deployment

CHAT = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
COMPLETION = {"model": "null", "prompt": "Hi", "max_tokens": 5}
RESPONSE = {"model": "null", "input": "Hi", "max_output_tokens": 16}
#: By the null engine, when it takes the job.
REFUSED = {**RESPONSE, "top_logprobs": 1}
USAGE = {"stream_options": {"include_usage": True}}


def made(deployment: Deployment, path: str, body: Any) -> tuple[str, list[SentEvent]]:
    """The id of the job, and what its maker got."""
    url = f"{deployment.url}/{path}"
    with event_stream("POST", url, body={**body, "stream": True}) as (response, events):
        sent = list(events)
    assert response.status_code == 200, sent
    return response.headers["x-rose-job-id"], sent


def followed(deployment: Deployment, job_id: str, last: str | None, *, query: bool = False) -> Any:
    url = f"{deployment.url}/jobs/{job_id}/events"
    headers = {}
    if last is not None and query:
        url += f"?last_event_id={last}"
    elif last is not None:
        headers["Last-Event-ID"] = last
    with event_stream("GET", url, headers) as (response, events):
        assert response.headers["x-rose-job-id"] == job_id
        return list(events)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", CHAT),
        ("chat/completions", {**CHAT, **USAGE}),
        ("completions", {**COMPLETION, **USAGE}),
        ("completions", {**COMPLETION, "echo": True}),
        ("responses", RESPONSE),
    ],
)
@pytest.mark.parametrize("query", [False, True])
def test_a_stream_goes_on_after_any_of_its_events(
    deployment: Deployment, path: str, body: Any, query: bool
) -> None:
    job_id, sent = made(deployment, path, body)
    ids = [event.id for event in sent[:-1]]
    if path == "responses":
        ids = [str(event.json["sequence_number"]) for event in sent[:-1]]

    assert followed(deployment, job_id, None) == sent
    for number, last in enumerate(ids):
        assert followed(deployment, job_id, last, query=query) == sent[number + 1 :]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", CHAT),
        ("chat/completions", {**CHAT, **USAGE, "n": 2}),
        ("completions", COMPLETION),
        ("responses", RESPONSE),
        ("responses", REFUSED),
    ],
)
def test_a_reader_who_has_the_end_is_told_that_nothing_follows(
    deployment: Deployment, path: str, body: Any
) -> None:
    job_id, sent = made(deployment, path, body)
    places = [f"/jobs/{job_id}/events"]
    if path == "responses":
        places.append(f"/responses/resp_{job_id}?stream=true")

    for place in places:
        headers = {"Last-Event-ID": str(sent[-1].id)}
        assert deployment.get(place, headers=headers).status_code == 204


def test_a_reader_who_has_the_failure_is_told_that_nothing_follows(
    start_deployment: Any,
) -> None:
    deployment = start_deployment(worker=SLOW)
    body = {**CHAT, "max_tokens": 100_000, "stream": True, "n": 2}
    with event_stream("POST", f"{deployment.url}/chat/completions", body=body) as (
        response,
        events,
    ):
        job_id = response.headers["x-rose-job-id"]
        next(events)
        deployment.post(f"/jobs/{job_id}/cancel")
        last = list(events)[-1]

    assert "error" in last.json
    headers = {"Last-Event-ID": str(last.id)}
    assert deployment.get(f"/jobs/{job_id}/events", headers=headers).status_code == 204


def test_an_answer_that_nobody_streamed_can_be_streamed_later(deployment: Deployment) -> None:
    answer = deployment.post("/chat/completions", json=CHAT)

    events = followed(deployment, answer.headers["x-rose-job-id"], None)

    assert [event.id for event in events][:2] == ["0-0", "1-0"]
    assert events[-1].data == "[DONE]"


def test_a_job_of_anybody_s_comes_as_its_own_events(deployment: Deployment) -> None:
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        job = client.submit("Hi", max_new_tokens=3)
        expected = [(event.entry_id, event.as_dict()) for event in job.stream()]

    events = followed(deployment, job.id, None)

    assert [event.id for event in events] == [entry_id for entry_id, _ in expected]
    assert [event.json["type"] for event in events] == ["tokens"] * 3 + ["finished"]
    assert [event.json.get("token_ids") for event in events] == [[72], [105], [72], None]
    assert followed(deployment, job.id, "2-0") == events[2:]
    done = deployment.get(f"/jobs/{job.id}/events", headers={"Last-Event-ID": "3-1"})
    assert done.status_code == 204


@pytest.mark.parametrize("last", ["x", "1", "1-4", "1-0,2-0", "-1-0", "1" * 11 + "-0", "²-0"])
def test_what_is_no_position_is_refused(deployment: Deployment, last: str) -> None:
    job_id, _ = made(deployment, "chat/completions", CHAT)

    answer = deployment.get(f"/jobs/{job_id}/events", params={"last_event_id": last})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "last_event_id"


@pytest.mark.parametrize("job_id", ["0-nobody", "x" * 100, "a%00b", "%F0%9F%A6%8A"])
@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("GET", "/events"), ("POST", "/cancel")])
def test_an_unknown_job_is_not_found(
    deployment: Deployment, job_id: str, method: str, tail: str
) -> None:
    answer = deployment.request(method, f"/jobs/{job_id}{tail}")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("not_found", "unknown_url")


def test_a_job_says_how_it_stands(deployment: Deployment) -> None:
    job_id, _ = made(deployment, "chat/completions", {**CHAT, "n": 2})

    job = deployment.get(f"/jobs/{job_id}").json()

    assert (job["id"], job["object"], job["endpoint"], job["model"]) == (
        job_id,
        "job",
        "chat",
        "null",
    )
    assert [choice["status"] for choice in job["choices"]] == ["finished"] * 2
    assert [choice["tokens"] for choice in job["choices"]] == [5, 5]
    assert job["created_at"] <= job["started_at"] <= job["ended_at"]


def test_a_job_can_be_cancelled_while_others_follow_it(start_deployment: Any) -> None:
    deployment = start_deployment(worker=SLOW)
    body = {**CHAT, "max_tokens": 100_000, "stream": True}
    with event_stream("POST", f"{deployment.url}/chat/completions", body=body) as (
        response,
        events,
    ):
        job_id = response.headers["x-rose-job-id"]
        next(events)

        answer = deployment.post(f"/jobs/{job_id}/cancel")
        last = list(events)[-1]

    assert answer.json()["choices"][0]["cancel_requested"] is True
    assert last.json["error"]["code"] == "cancelled"
    wait_until(
        lambda: deployment.get(f"/jobs/{job_id}").json()["choices"][0]["status"] == "cancelled"
    )
    # Again does no harm, and whoever comes later hears the same.
    assert deployment.post(f"/jobs/{job_id}/cancel").status_code == 200
    assert followed(deployment, job_id, None)[-1] == last


def test_a_reader_that_leaves_cancels_nothing(start_deployment: Any) -> None:
    deployment = start_deployment(worker=SLOW)
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        job = client.submit("Hi", max_new_tokens=40)

        with event_stream("GET", f"{deployment.url}/jobs/{job.id}/events") as (_, events):
            next(events)

        assert len(job.result(timeout_s=60).token_ids) == 40
