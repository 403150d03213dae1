"""After a failover a log may be written again with other boundaries: its streams stay the same."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from rose.protocol import CancelledEvent, Partition, TokenEvent
from rose_producer import Client
from tests.gateway.jobs.test_routes import CHAT, COMPLETION, RESPONSE, USAGE, followed, made
from tests.support.event_stream import event_stream
from tests.support.gateway import Deployment
from tests.support.rewriting import in_portions, log_of, write_log

BODIES = [
    ("chat/completions", {**CHAT, **USAGE}),
    ("chat/completions", {**CHAT, "n": 2}),
    ("completions", COMPLETION),
    ("responses", RESPONSE),
]


@pytest.fixture
def raw(deployment: Deployment) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(deployment.redis_url, protocol=2) as raw:
        yield raw


@pytest.fixture
def partition(deployment: Deployment) -> Partition:
    return Partition(deployment.queue)


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize("sizes", [(4, 1), (3, 2, 5), (100,)])
def test_a_stream_goes_on_after_any_event_of_a_log_that_was_written_again(
    deployment: Deployment,
    raw: redis.Redis,
    partition: Partition,
    path: str,
    body: Any,
    sizes: tuple[int, ...],
) -> None:
    # given: what the reader got, token by token
    job_id, sent = made(deployment, path, body)
    # when
    for choice in [job_id, *(f"{job_id}.{n}" for n in range(1, body.get("n", 1)))]:
        log = log_of(raw, partition, choice)
        write_log(raw, partition, choice, list(in_portions(log, sizes)))
    # then
    by_number = [str(n) for n in range(len(sent) - 1)]
    ids = by_number if path == "responses" else [str(event.id) for event in sent[:-1]]
    if body.get("n", 1) == 1:
        assert followed(deployment, job_id, None) == sent
        for number, last in enumerate(ids):
            assert followed(deployment, job_id, last) == sent[number + 1 :]
    else:  # choices take turns as they like
        for number, last in enumerate(ids):
            assert said([*sent[: number + 1], *followed(deployment, job_id, last)]) == said(sent)


def said(events: list[Any]) -> list[str]:
    """By each choice."""
    texts = ["", ""]
    for event in events:
        for choice in [] if event.data == "[DONE]" else event.json["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    return texts


def test_a_job_s_own_events_go_on_inside_of_an_event(
    deployment: Deployment, raw: redis.Redis, partition: Partition
) -> None:
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        job = client.submit("Hi", max_new_tokens=6)
        job.result()
    sent = followed(deployment, job.id, None)
    write_log(raw, partition, job.id, list(in_portions(log_of(raw, partition, job.id), (4, 2))))

    for number, event in enumerate(sent[:-1]):
        assert followed(deployment, job.id, event.id) == sent[number + 1 :]


def test_a_reader_who_has_more_than_the_answer_is_refused(deployment: Deployment) -> None:
    job_id, _ = made(deployment, "chat/completions", CHAT)

    answer = deployment.get(f"/jobs/{job_id}/events", headers={"Last-Event-ID": "9-0"})

    assert answer.status_code == 400
    assert "the answer ends after 5 tokens" in answer.json()["error"]["message"]


def test_a_reader_hears_of_the_end_of_a_job_that_came_before_his_tokens_came_again(
    deployment: Deployment, raw: redis.Redis, partition: Partition
) -> None:
    # given: five tokens were delivered
    job_id, _ = made(deployment, "chat/completions", CHAT)
    # when: two of them came again before the job was cancelled
    log = [event for event in log_of(raw, partition, job_id) if isinstance(event, TokenEvent)]
    write_log(raw, partition, job_id, [*log[:2], CancelledEvent(index=2)])
    # then
    url = f"{deployment.url}/jobs/{job_id}/events"
    with event_stream("GET", url, {"Last-Event-ID": "5-0"}) as (_, events):
        (last,) = events
    assert last.json["error"]["code"] == "cancelled"
    headers = {"Last-Event-ID": str(last.id)}
    assert deployment.get(f"/jobs/{job_id}/events", headers=headers).status_code == 204
