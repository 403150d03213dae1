"""/v1/responses with the null engine, which echoes the prompt byte by byte."""

import pytest
from openai.types.responses import Response

from rose.errors import JobNotFound
from rose_producer import Client
from tests.gateway.responses.calls import (
    ECHO,
    create,
    created,
    events_of,
    followed,
    has_ended,
    refused,
    text_of,
    wait_for,
)
from tests.support.gateway import Deployment


def test_an_answer_is_what_the_library_calls_a_response(deployment: Deployment) -> None:
    answer = create(deployment.url, metadata={"a": "b"}, instructions=None)

    response = answer.json()
    Response.model_validate(response)
    assert text_of(response) == ECHO
    assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", 4)
    assert response["metadata"] == {"a": "b"}
    assert answer.headers["x-rose-job-id"] == response["id"].removeprefix("resp_")


def test_a_stream_is_replayed_the_same_from_any_number(deployment: Deployment) -> None:
    stream = create(deployment.url, stream=True)
    whole = events_of(stream.content)
    response_id = whole[0]["response"]["id"]

    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert followed(deployment.url, response_id) == stream.content
    for number in range(len(whole)):
        assert events_of(followed(deployment.url, response_id, number)) == whole[number + 1 :]


def test_last_event_id_is_a_position_too(deployment: Deployment) -> None:
    stream = create(deployment.url, stream=True)
    whole = events_of(stream.content)

    rest = deployment.get(
        f"/responses/{whole[0]['response']['id']}?stream=true", headers={"last-event-id": "5"}
    )

    assert events_of(rest.content) == whole[6:]


def test_a_background_response_goes_its_way(deployment: Deployment) -> None:
    response = created(deployment.url, background=True)
    assert response["background"] is True

    final = wait_for(deployment.url, response["id"], has_ended)

    events = events_of(followed(deployment.url, response["id"]))
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert [event["response"]["status"] for event in events[:2]] == ["queued", "queued"]
    assert events[-1]["response"] == final
    assert text_of(final) == ECHO


def test_a_cancellation_that_comes_too_late_gives_the_final_response(
    deployment: Deployment,
) -> None:
    response_id = created(deployment.url, background=True)["id"]
    final = wait_for(deployment.url, response_id, has_ended)

    for _ in range(2):
        answer = deployment.post(f"/responses/{response_id}/cancel")
        assert (answer.status_code, answer.json()) == (200, final)


def test_a_deleted_response_is_gone(deployment: Deployment) -> None:
    response_id = created(deployment.url)["id"]

    answer = deployment.request("DELETE", f"/responses/{response_id}")

    assert answer.json() == {"id": response_id, "object": "response", "deleted": True}
    refused(deployment.get(f"/responses/{response_id}"), 404)
    refused(deployment.request("DELETE", f"/responses/{response_id}"), 404)


@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_and_is_not_stored_is_deleted(deployment: Deployment, stream: bool) -> None:
    answer = create(
        deployment.url, store=False, stream=stream, top_logprobs=1
    )  # refused by the worker

    assert answer.status_code == (200 if stream else 400)
    with (
        Client(redis_url=deployment.redis_url, queue=deployment.queue) as client,
        pytest.raises(JobNotFound),
    ):
        client.job(answer.headers["x-rose-job-id"]).status()


def test_service_tiers_are_shown_as_they_were_served(deployment: Deployment) -> None:
    tiers = {"auto": "default", "flex": "flex", "priority": "priority", "fast": "priority"}

    for asked, shown in tiers.items():
        assert created(deployment.url, service_tier=asked)["service_tier"] == shown


def test_a_background_prompt_that_the_worker_refuses_fails(deployment: Deployment) -> None:
    response_id = created(deployment.url, background=True, top_logprobs=1)["id"]

    final = wait_for(deployment.url, response_id, has_ended)

    assert final["status"] == "failed"
    assert (final["error"]["code"], final["error"]["type"]) == (
        "invalid_prompt",
        "invalid_parameter",
    )
    refused(create(deployment.url, previous_response_id=response_id))


def test_a_response_that_missed_its_deadline_failed(deployment: Deployment) -> None:
    response = created(deployment.url, deadline_s=0.001, max_output_tokens=4000)

    assert response["status"] == "failed"
    assert response["error"]["type"] == "deadline_exceeded"


def test_a_stream_may_be_asked_for_as_openais_library_for_go_does(deployment: Deployment) -> None:
    # given
    whole = events_of(create(deployment.url, stream=True).content)
    path = f"/responses/{whole[0]['response']['id']}?starting_after=5"
    # when: the bytes of its GetStreaming (3.52.0), which has the wish in a body
    answer = deployment.get(path, headers={"accept": "application/json"}, content='{"stream":true}')
    # then
    assert events_of(answer.content) == whole[6:]
    for other in ('{"stream":false}', "[true]", "{", b"\xff"):
        assert deployment.get(path, content=other).json()["error"]["param"] == "starting_after"
