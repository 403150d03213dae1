"""Clients that leave, cancellations, a worker and a gateway that are killed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx2 as httpx
import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client
from tests.gateway.responses.calls import (
    created,
    events_of,
    followed,
    has_ended,
    has_text,
    refused,
    retrieve,
    text_of,
    wait_for,
)
from tests.support.bench import wait_until
from tests.support.echo import SLOW, echoed_text
from tests.support.event_stream import event_stream, leave_when
from tests.support.gateway import Deployment, running_deployment, running_gateway

LONG = {"model": "null", "input": "hello", "max_output_tokens": 5000}


@pytest.fixture
def slow_deployment(start_deployment: Callable[..., Deployment]) -> Deployment:
    return start_deployment(worker=SLOW)


@contextmanager
def streaming(url: str, **fields: Any) -> Iterator[tuple[httpx.Response, Iterator[dict[str, Any]]]]:
    """A stream that is open, and its events as they come. Leaving it closes the connection."""
    headers = fields.pop("headers", None)
    body = {**LONG, "stream": True, **fields}
    with event_stream("POST", f"{url}/responses", headers, body) as (answer, events):
        assert answer.status_code == 200
        yield answer, (event.json for event in events if event.data != "[DONE]")


def until_text(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return next(event for event in events if event["type"] == "response.output_text.delta")


def test_a_client_that_leaves_its_stream_cancels_it(slow_deployment: Deployment) -> None:
    with streaming(slow_deployment.url) as (answer, events):
        until_text(events)
        response_id = "resp_" + answer.headers["x-rose-job-id"]

    final = wait_for(slow_deployment.url, response_id, has_ended)

    assert final["status"] == "cancelled"
    assert final["output"][0]["status"] == "incomplete"


def test_a_client_that_leaves_without_its_answer_cancels_it(slow_deployment: Deployment) -> None:
    metadata = {"metadata": {"find": "me"}}
    with Client(redis_url=slow_deployment.redis_url, queue=slow_deployment.queue) as client:
        leave_when(
            lambda: client.queue_status().running == 1,
            f"{slow_deployment.url}/responses",
            {**LONG, **metadata},
            {"idempotency-key": "k", "x-rose-on-disconnect": "cancel"},
        )

    # The same request again finds the job that was made.
    again = slow_deployment.post(
        "/responses", json={**LONG, **metadata}, headers={"idempotency-key": "k"}
    )
    assert again.json()["status"] == "cancelled"


def test_a_stream_may_go_on_without_its_client(slow_deployment: Deployment) -> None:
    headers = {"x-rose-on-disconnect": "continue"}
    with streaming(slow_deployment.url, headers=headers, max_output_tokens=100) as (answer, events):
        last = until_text(events)
        response_id = "resp_" + answer.headers["x-rose-job-id"]

    rest = events_of(followed(slow_deployment.url, response_id, last["sequence_number"]))

    assert rest[0]["sequence_number"] == last["sequence_number"] + 1
    assert rest[-1]["response"]["usage"]["output_tokens"] == 100


def test_what_is_not_stored_cannot_go_on_without_its_client(slow_deployment: Deployment) -> None:
    answer = slow_deployment.post(
        "/responses", json={**LONG, "store": False}, headers={"x-rose-on-disconnect": "continue"}
    )

    assert refused(answer)["param"] == "store"


def test_a_reader_that_leaves_cancels_nothing(slow_deployment: Deployment) -> None:
    response_id = created(slow_deployment.url, background=True, max_output_tokens=60)["id"]

    url = f"{slow_deployment.url}/responses/{response_id}?stream=true"
    with event_stream("GET", url) as (_, events):
        until_text(event.json for event in events)

    assert wait_for(slow_deployment.url, response_id, has_ended)["status"] == "incomplete"


def test_a_response_that_goes_on_shows_its_output_so_far(slow_deployment: Deployment) -> None:
    response_id = created(slow_deployment.url, background=True, **_without_model(LONG))["id"]

    response = wait_for(slow_deployment.url, response_id, has_text)

    assert response["status"] == "in_progress"
    assert response["output"][0]["status"] == "in_progress"
    assert (response["usage"], response["completed_at"]) == (None, None)


def test_a_response_that_goes_on_has_no_next_one(slow_deployment: Deployment) -> None:
    response_id = created(slow_deployment.url, background=True, **_without_model(LONG))["id"]

    answer = slow_deployment.post("/responses", json={**LONG, "previous_response_id": response_id})

    assert refused(answer)["param"] == "previous_response_id"


def test_a_cancelled_response_keeps_what_it_said(slow_deployment: Deployment) -> None:
    response_id = created(slow_deployment.url, background=True, **_without_model(LONG))["id"]
    before = text_of(wait_for(slow_deployment.url, response_id, has_text))

    answer = slow_deployment.post(f"/responses/{response_id}/cancel")

    cancelled = answer.json()
    assert (answer.status_code, cancelled["status"]) == (200, "cancelled")
    assert text_of(cancelled).startswith(before)
    assert retrieve(slow_deployment.url, response_id) == cancelled
    last = events_of(followed(slow_deployment.url, response_id))[-1]
    assert (last["type"], last["response"]) == ("response.incomplete", cancelled)


def test_a_response_that_is_deleted_while_it_goes_on_is_gone_at_once(
    slow_deployment: Deployment,
) -> None:
    response_id = created(slow_deployment.url, background=True, **_without_model(LONG))["id"]
    wait_for(slow_deployment.url, response_id, has_text)

    assert slow_deployment.request("DELETE", f"/responses/{response_id}").status_code == 200

    refused(slow_deployment.get(f"/responses/{response_id}"), 404)


def test_a_waiting_response_is_queued_and_is_cancelled_at_once(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker().kill()  # it has announced its model
    with running_gateway(broker.url, queue) as gateway:
        response = created(gateway.url, background=True)

        answer = httpx.post(f"{gateway.url}/responses/{response['id']}/cancel", timeout=60)

        assert response["status"] == "queued"
        assert (answer.json()["status"], answer.json()["output"]) == ("cancelled", [])
        events = events_of(followed(gateway.url, response["id"]))
        assert [event["type"] for event in events] == [
            "response.created",
            "response.queued",
            "response.incomplete",
        ]


def test_a_stream_outlives_its_worker_and_its_gateway(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    first = start_worker(**SLOW)
    with running_gateway(broker.url, queue) as one, running_gateway(broker.url, queue) as other:
        seen: list[dict[str, Any]] = []
        with streaming(one.url, background=True, max_output_tokens=200) as (answer, events):
            response_id = "resp_" + answer.headers["x-rose-job-id"]
            for event in events:
                seen.append(event)
                if len(seen) == 12:
                    first.kill()
                    start_worker(**SLOW)
                if len(seen) == 80:  # the second worker's
                    break
        one.kill()

        rest = events_of(followed(other.url, response_id, seen[-1]["sequence_number"]))
        whole = events_of(followed(other.url, response_id))

    assert [*seen, *rest] == whole
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    text = "".join(event["delta"] for event in whole if event["type"].endswith("text.delta"))
    assert text == echoed_text("hello", 200)
    assert text_of(whole[-1]["response"]) == text


def test_a_stream_that_breaks_off_says_so_and_is_resumed(
    own_broker: EmbeddedBroker, queue: str
) -> None:
    settings = {"reconnect_timeout_s": 0.5}
    with running_deployment(own_broker.url, queue, worker=SLOW, **settings) as deployment:
        with streaming(deployment.url, background=True) as (answer, events):
            response_id = "resp_" + answer.headers["x-rose-job-id"]
            seen = [until_text(events)]
            own_broker.stop()
            seen += events
        own_broker.start()
        error, last = seen[-1], seen[-2]

        assert (error["type"], error["code"]) == ("error", "broker_unavailable")
        assert error["sequence_number"] == last["sequence_number"]
        cancel = partial(deployment.post, f"/responses/{response_id}/cancel")
        # Until the gateway has found Redis again, it answers 503
        wait_until(lambda: cancel().status_code != 503)
        answer = cancel()
        assert answer.json()["status"] == "cancelled", answer.text
        rest = events_of(followed(deployment.url, response_id, error["sequence_number"]))
        assert rest[0]["sequence_number"] == last["sequence_number"] + 1


def _without_model(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "model"}
