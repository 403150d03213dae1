"""Responses over a WebSocket."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.responses.calls import ECHO, events_of, followed, refused
from tests.support.api_keys import bearer, create_key
from tests.support.bench import wait_until
from tests.support.gateway import Deployment, gateway_metrics
from tests.support.websocket import Refused, WebSocketClient

CREATE = {"type": "response.create", "model": "null", "input": "hello", "max_output_tokens": 4}
SLOW = {"min_step_s": 0.02}


def test_a_message_brings_the_events_of_a_stream(deployment: Deployment) -> None:
    # when
    with WebSocketClient(deployment.port) as client:
        client.send({**CREATE, "stream": True})
        events = client.events()

    # then
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in client.head
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == ECHO
    assert events == events_of(followed(deployment.url, response["id"]))


@pytest.mark.parametrize("store", [True, False])
def test_the_next_message_goes_on_from_the_last_response_stored_or_not(
    deployment: Deployment, store: bool
) -> None:
    with WebSocketClient(deployment.port) as client:
        # given
        client.send({**CREATE, "store": store})
        first = client.events()[-1]["response"]

        # when
        client.send(
            {**CREATE, "store": store, "previous_response_id": first["id"], "input": "next"}
        )
        second = client.events()[-1]["response"]

        # then: the null engine echoes the conversation from its beginning
        assert second["output"][0]["content"][0]["text"] == ECHO
        assert second["usage"]["input_tokens"] == len("hello" + ECHO + "next")
    if not store:
        with WebSocketClient(deployment.port) as other:
            other.send({**CREATE, "previous_response_id": first["id"]})
            (error,) = other.events()
            assert (error["status"], error["error"]["code"]) == (404, "previous_response_not_found")


def test_a_response_that_could_not_be_gone_on_from_is_forgotten(deployment: Deployment) -> None:
    with WebSocketClient(deployment.port) as client:
        # given
        client.send({**CREATE, "store": False})
        previous = {"store": False, "previous_response_id": client.events()[-1]["response"]["id"]}

        # when
        output = {"type": "function_call_output", "call_id": "none", "output": "1"}
        client.send({**CREATE, **previous, "input": [output]})
        (wrong,) = client.events()
        client.send({**CREATE, **previous})
        (again,) = client.events()

    # then
    assert wrong["status"] == 400
    assert again["error"]["code"] == "previous_response_not_found"


def test_what_is_sent_early_counts_as_a_response_to_go_on_from(deployment: Deployment) -> None:
    with WebSocketClient(deployment.port) as client:
        # given
        client.send({**CREATE, "generate": False})
        early = client.events()

        # when
        client.send({**CREATE, "previous_response_id": early[-1]["response"]["id"], "input": "y"})
        response = client.events()[-1]["response"]

        # then
        assert [event["type"] for event in early] == ["response.created", "response.completed"]
        assert response["usage"]["input_tokens"] == len("helloy")


@pytest.mark.parametrize(
    ("message", "status", "param"),
    [
        ({"type": "response.cancel"}, 400, "type"),
        ({}, 400, "type"),
        ({**CREATE, "model": "other"}, 404, "model"),
        ({**CREATE, "temperature": 9}, 400, "temperature"),
        ({**CREATE, "background": True}, 400, "background"),
        ({**CREATE, "unknown": 1}, 400, "unknown"),
        ({**CREATE, "generate": False, "previous_response_id": "resp_x"}, 400, "generate"),
        ({**CREATE, "previous_response_id": "resp_x"}, 404, "previous_response_id"),
    ],
)
def test_a_wrong_message_is_refused_and_the_next_is_answered(
    deployment: Deployment, message: dict[str, Any], status: int, param: str
) -> None:
    with WebSocketClient(deployment.port) as client:
        client.send(message)
        (error,) = client.events()
        client.send({"type": "response.processed", "response_id": "resp_x"})
        client.send(CREATE)
        events = client.events()

    assert (error["type"], error["status"]) == ("error", status)
    assert error["error"]["param"] == param
    assert events[-1]["type"] == "response.incomplete"


def test_messages_may_come_in_pieces_and_before_their_answers(deployment: Deployment) -> None:
    # given
    with WebSocketClient(deployment.port) as client:
        text = json.dumps(CREATE)
        pieces = [client.frame(text[:5], last=False), client.frame("", last=False)]
        pieces.append(client.frame(text[5:]))

        # when
        for byte in b"".join(pieces):
            client.send_bytes(bytes([byte]))
        client.send(CREATE)

        # then
        assert client.events()[-1]["type"] == client.events()[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize(
    ("hostile", "code"),
    [
        (lambda client: client.frame("x" * 3000), 1009),
        (lambda client: client.frame("x" * 900, last=False), None),
        (lambda client: b"\x81\xff" + (1 << 62).to_bytes(8, "big") + bytes(4) + b"x" * 5000, 1009),
        (lambda client: client.frame("{}") * 9, 1008),
        (lambda client: b"\x81\x02{}", 1002),
        (lambda client: b"\xff\xff\xff", 1002),
        (lambda client: b"\x82\x80" + bytes(4), 1003),
        (lambda client: b"\x81\x81" + bytes(4) + b"\xff", 1007),
        (lambda client: b"\x89\xfe\x00\x80" + bytes(4) + bytes(128), 1002),
    ],
)
def test_a_hostile_client_loses_its_connection(
    start_deployment: Callable[..., Deployment],
    hostile: Callable[[WebSocketClient], bytes],
    code: int | None,
) -> None:
    # given
    deployment = start_deployment(max_body_bytes=1024, body_timeout_s=0.2)

    # when: it says more than it may, or never ends what it says
    with WebSocketClient(deployment.port) as client:
        client.send_bytes(hostile(client))
        while client.receive() is not None:
            continue

        # then
        assert client.close_code == code
    wait_until(lambda: gateway_metrics(deployment.gateway)["rose_gateway_open_connections"] <= 1)
    with WebSocketClient(deployment.port) as other:
        other.send(CREATE)
        assert other.events()[-1]["type"] == "response.incomplete"


def test_a_client_that_goes_cancels_its_response(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given
    deployment = start_deployment(worker=SLOW)
    with WebSocketClient(deployment.port) as client:
        client.send({**CREATE, "max_output_tokens": 10_000})
        created = client.receive()

    # then
    assert created is not None
    path = f"/responses/{created['response']['id']}"
    wait_until(lambda: deployment.get(path).json()["status"] == "cancelled")


def test_a_client_that_says_nothing_loses_its_connection(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given
    deployment = start_deployment(heartbeat_s=0.1, write_timeout_s=0.3)

    with WebSocketClient(deployment.port) as client:
        # when: it answers no ping
        client.read_to_the_end()
    # then: only who asks is connected
    wait_until(lambda: gateway_metrics(deployment.gateway)["rose_gateway_open_connections"] <= 1)


def test_the_connection_needs_a_key_and_no_foreign_origin(
    start_own_deployment: Callable[..., Deployment],
) -> None:
    # given
    deployment = start_own_deployment()
    named = bearer(create_key(deployment, "--requests-per-minute", "2")["secret"])

    # then
    for headers, status in [
        ({}, "401"),
        ({"authorization": "Bearer wrong"}, "401"),
        ({**named, "origin": "https://evil.example"}, "403"),
    ]:
        with pytest.raises(Refused, match=status):
            WebSocketClient(deployment.port, headers=headers)
    with WebSocketClient(deployment.port, headers=named) as client:
        for _ in range(2):
            client.send(CREATE)
            assert client.events()[-1]["type"] == "response.incomplete"
        client.send(CREATE)
        (error,) = client.events()
        assert error["status"] == 429
        assert float(error["headers"]["retry-after"]) > 0


def test_other_requests_are_told_what_it_is_for(deployment: Deployment) -> None:
    answer = deployment.get("/responses")

    assert refused(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"
    with pytest.raises(Refused, match="200 OK"):
        WebSocketClient(deployment.port, "/v1/models")


def test_a_server_that_stops_closes_what_rests(start_deployment: Callable[..., Deployment]) -> None:
    # given
    deployment = start_deployment(worker=SLOW)
    with WebSocketClient(deployment.port) as resting, WebSocketClient(deployment.port) as busy:
        busy.send({**CREATE, "max_output_tokens": 40})
        assert busy.receive() is not None

        # when
        deployment.gateway.signal(signal.SIGTERM)

        # then
        assert resting.receive() is None
        assert busy.events()[-1]["type"] == "response.incomplete"
        assert busy.receive() is None
    assert deployment.gateway.terminate() == 0
