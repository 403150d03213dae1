"""Event streams in the wire's bytes."""

import json
import signal
import socket
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from rose.errors import JobNotFound
from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.gateway import Deployment

BODY = {"model": "null", "prompt": "ab", "max_tokens": 3, "stream": True}


def test_a_silent_stream_has_a_heartbeat(start_deployment: Callable[..., Deployment]) -> None:
    # given: the worker does nothing for a while
    deployment = start_deployment(heartbeat_s=0.1)
    (worker,) = deployment.workers
    worker.signal(signal.SIGSTOP)
    with httpx.stream("POST", f"{deployment.url}/completions", json=BODY, timeout=90) as answer:
        lines = answer.iter_lines()
        # then
        assert [next(lines) for _ in range(4)] == [": keep-alive", "", ": keep-alive", ""]
        # when
        worker.signal(signal.SIGCONT)
        # then
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_heartbeats_end_no_event_in_openai_s_sdk(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given: silences between events that have ids, the last of which the SDK keeps
    deployment = start_deployment(heartbeat_s=0.1, worker={"min_step_s": 0.3})
    chat = {"model": "null", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 4}
    key = {"Idempotency-Key": "heartbeats"}
    with deployment.openai() as ai:
        # when
        chunks = ai.chat.completions.create(**chat, stream=True, extra_headers=key)
        by_chat = [chunk.choices[0].delta.content or "" for chunk in chunks]
        events = ai.responses.create(model="null", input="ab", max_output_tokens=4, stream=True)
        by_responses = [event.delta for event in events if "delta" in event.type]
    # then
    assert "".join(by_chat) == "".join(by_responses) == "97 98 97 98 "


def test_a_reader_that_strips_what_it_reads_survives_heartbeats(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given
    deployment = start_deployment(heartbeat_s=0.1, worker={"min_step_s": 0.3})
    events: list[str] = []
    rest = ""
    with httpx.stream("POST", f"{deployment.url}/completions", json=BODY, timeout=90) as answer:
        # when: as `vllm bench serve` reads
        for chunk in answer.iter_raw():
            rest += chunk.decode().strip()
            *whole, rest = rest.split("\n\n")
            events += whole
            if rest.startswith("data: "):
                events.append(rest)
                rest = ""
    # then: heartbeats came, and every event is whole
    comments = [event for event in events if event.startswith(":")]
    data = [event for event in events if event.startswith("data: ")]
    assert len(comments) + len(data) == len(events)
    assert any("keep-alive" in comment for comment in comments)
    texts = [json.loads(event[6:])["choices"][0]["text"] for event in data[:-1]]
    assert "".join(texts) == "97 98 97 "
    assert data[-1] == "data: [DONE]"


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_client_of_http_1_0_is_given_no_chunks(deployment: Deployment, connection: str) -> None:
    # given
    body = json.dumps(BODY).encode()
    head = (
        "POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: {connection}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", deployment.port), timeout=90) as client:
        # when
        client.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    # then: the connection ends with the stream, which is nothing but events
    headers, _, stream = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers
    assert all(line.startswith(b"data: ") for line in stream.split(b"\n") if line)
    assert stream.endswith(b"data: [DONE]\n\n")


#: The null engine refuses it, when it takes the job.
REFUSED = {"model": "null", "prompt": "ab", "stream": True, "logprobs": 1}


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_what_fails_before_a_stream_begins_is_answered_with_its_status(
    deployment: Deployment, path: str
) -> None:
    # given
    body: dict[str, Any] = REFUSED
    if path == "chat/completions":
        messages = [{"role": "user", "content": "ab"}]
        body = {"model": "null", "messages": messages, "stream": True, "logprobs": True}
    # when
    answer = deployment.post(f"/{path}", json=body)
    # then: as one that is not streamed
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["code"] == "invalid_parameter"
    whole = deployment.post(f"/{path}", json={**body, "stream": False})
    assert whole.status_code == 400


def test_one_that_means_to_come_back_is_told_its_job_before_a_stream_begins(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given: nobody takes the job
    deployment = start_deployment()
    (worker,) = deployment.workers
    worker.signal(signal.SIGSTOP)
    headers = {"x-rose-on-disconnect": "continue"}
    url = f"{deployment.url}/completions"
    # when
    with httpx.stream("POST", url, json=REFUSED, headers=headers, timeout=90) as answer:
        # then: the answer has begun
        assert answer.status_code == 200
        assert answer.headers["x-rose-job-id"]
        worker.signal(signal.SIGCONT)
        # then: what goes wrong is told in it
        last = [line for line in answer.iter_lines() if line.startswith("data: ")][-1]
    assert json.loads(last[6:])["error"]["code"] == "invalid_parameter"


def test_a_stream_that_has_begun_with_a_heartbeat_ends_with_the_error(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given: silence before the failure
    deployment = start_deployment(heartbeat_s=0.1)
    (worker,) = deployment.workers
    worker.signal(signal.SIGSTOP)
    with httpx.stream("POST", f"{deployment.url}/completions", json=REFUSED, timeout=90) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": keep-alive"
        # when
        worker.signal(signal.SIGCONT)
        # then
        data = [line for line in lines if line.startswith("data: ")]
    (error,) = data
    assert answer.status_code == 200
    assert json.loads(error[6:])["error"]["code"] == "invalid_parameter"


@pytest.mark.parametrize("stream", [True, False])
def test_a_job_that_fails_and_is_not_to_be_stored_is_deleted(
    deployment: Deployment, *, stream: bool
) -> None:
    # when
    body = {**REFUSED, "store": False, "stream": stream}
    answer = deployment.post("/completions", json=body)
    # then
    assert answer.status_code == 400
    with (
        Client(redis_url=deployment.redis_url, queue=deployment.queue) as client,
        pytest.raises(JobNotFound),
    ):
        client.job(answer.headers["x-rose-job-id"]).status()


def test_a_client_that_goes_before_its_stream_begins_cancels_its_job(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given: a worker that has one slot, which is taken
    deployment = start_deployment(worker={"max_batch_size": 1, "min_step_s": 0.05})
    taken = {"model": "null", "input": "ab", "background": True}
    long = deployment.post("/responses", json=taken).json()["id"]
    body = json.dumps(BODY).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    )

    def newest() -> Any:
        return deployment.get("/jobs").json()["data"][0]

    # when
    with socket.create_connection(("127.0.0.1", deployment.port), timeout=90) as client:
        client.sendall(head.encode() + body)
        wait_until(lambda: newest()["endpoint"] == "completion")
    # then
    wait_until(lambda: newest()["choices"][0]["status"] == "cancelled")
    deployment.post(f"/responses/{long}/cancel")


def test_nothing_between_may_keep_events_back(deployment: Deployment) -> None:
    with httpx.stream("POST", f"{deployment.url}/completions", json=BODY, timeout=90) as answer:
        answer.read()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers


def test_events_that_are_there_together_go_out_in_one_write(deployment: Deployment) -> None:
    # given: a job that has ended
    body = {"model": "null", "input": "ab", "max_output_tokens": 500}
    made = deployment.post("/responses", json=body).json()
    # when
    url = f"{deployment.url}/responses/{made['id']}?stream=true"
    with httpx.stream("GET", url, timeout=90) as answer:
        chunks = list(answer.iter_raw())
    # then: hundreds of events in few chunks
    events = b"".join(chunks).count(b"\nevent: ") + 1
    assert events > 500
    assert len(chunks) < 50
