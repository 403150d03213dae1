"""Anthropic's client, unmodified: its stream while a worker is killed, and while it is itself."""

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest
from anthropic import Anthropic

from rose_cli.local.services import WorkerProcess
from tests.support.bench import wait_until
from tests.support.gateway import Deployment

MIDWAY = 20
#: In slow motion, on the real engine.
WORKER = {"engine": "rose", "torch_threads": 1, "min_step_s": 0.02}

REQUEST = {
    "model": "built-in",
    "max_tokens": 150,
    "messages": [{"role": "user", "content": "Once upon a time"}],
}
#: What the SDK has no names for.
DRAWN = {"temperature": 0.9, "seed": 7, "ignore_eos": True}


@pytest.fixture
def heir(start_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    """A worker that is ready, and stands still until it is told to go on."""
    worker = start_worker(**WORKER)
    worker.signal(signal.SIGSTOP)
    return worker


def told(client: Anthropic, into: list[str]) -> str:
    """The text of a stream, which others look at meanwhile."""
    with client.messages.stream(**REQUEST, extra_body=DRAWN) as stream:
        for text in stream.text_stream:
            into.append(text)  # noqa: PERF402
        assert stream.get_final_message().usage.output_tokens == REQUEST["max_tokens"]
    return "".join(into)


def test_a_message_loses_no_token_when_its_worker_is_killed(
    start_deployment: Callable[..., Deployment], heir: WorkerProcess
) -> None:
    # given
    deployment = start_deployment(worker=WORKER)
    (victim,) = deployment.workers
    texts: list[str] = []
    # when
    with (
        Anthropic(base_url=deployment.origin, api_key="none", timeout=90) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        disturbed = pool.submit(told, client, texts)
        wait_until(lambda: len(texts) >= MIDWAY)
        victim.kill()
        heir.signal(signal.SIGCONT)
        # then
        assert disturbed.result() == told(client, [])
    assert heir.metrics()["rose_jobs_redelivered_total"] == 1


def test_a_client_that_comes_back_reads_on_after_its_last_event(
    start_deployment: Callable[..., Deployment], heir: WorkerProcess
) -> None:
    # given: a client that goes in the middle, and a worker that does
    deployment = start_deployment(worker=WORKER)
    (victim,) = deployment.workers
    body = {**REQUEST, **DRAWN, "stream": True}
    keyed = {"idempotency-key": "a turn"}
    url = f"{deployment.url}/messages"
    with httpx.stream("POST", url, json=body, headers=keyed, timeout=90) as stream:
        job_id = stream.headers["x-rose-job-id"]
        read = [event for event, _ in zip(events(stream), range(MIDWAY), strict=False)]
    victim.kill()
    heir.signal(signal.SIGCONT)
    # when
    path = f"{deployment.url}/jobs/{job_id}/events"
    after = {"last-event-id": read[-1][0]}
    with httpx.stream("GET", path, headers=after, timeout=90) as stream:
        read += list(events(stream))
    # then: all events, each once, and the text of whoever was not disturbed
    assert [number for number, _ in read] == [str(number) for number in range(len(read))]
    assert read[-1][1]["type"] == "message_stop"
    texts = [data["delta"].get("text", "") for _, data in read if "delta" in data]
    with Anthropic(base_url=deployment.origin, api_key="none", timeout=90) as client:
        assert "".join(texts) == told(client, [])


def events(stream: httpx.Response) -> Iterator[tuple[str, dict]]:
    """The id and the data of each."""
    number = ""
    for line in stream.iter_lines():
        if line.startswith("id: "):
            number = line.removeprefix("id: ")
        elif line.startswith("data: "):
            yield number, json.loads(line.removeprefix("data: "))
