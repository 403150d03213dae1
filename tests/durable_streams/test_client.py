"""The protocol's own client reads a job, whose worker and gateway are killed meanwhile."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import GatewayProcess, WorkerProcess
from tests.support.echo import echoed_text, serving
from tests.support.node import Node

PROMPT = "the quick brown fox, "
TOKENS = 150


@pytest.fixture
def services() -> Iterator[tuple[list[WorkerProcess], GatewayProcess]]:
    """Two workers, slow enough to be killed in mid-sentence, and a gateway."""
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker())
        workers = [
            stack.enter_context(serving(f"worker-{name}", broker.url, min_step_s=0.03))
            for name in "ab"
        ]
        gateway = stack.enter_context(GatewayProcess("gateway", broker.url))
        gateway.wait_ready()
        yield workers, gateway


class Reader:
    """`read.mjs`, and what it has read so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pieces: list[dict[str, Any]] = []

    def read(self, count: int) -> None:
        assert self.process.stdout is not None
        self.pieces += [json.loads(self.process.stdout.readline()) for _ in range(count)]

    def read_all(self) -> None:
        assert self.process.stdout is not None
        self.pieces += map(json.loads, self.process.stdout)
        assert self.process.wait() == 0


@contextmanager
def reading(node: Node, project: Path, url: str, live: str) -> Iterator[Reader]:
    with subprocess.Popen(
        [node.program, "read.mjs"],
        cwd=project,
        env={**os.environ, "URL": url, "LIVE": live},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Reader(process)
        finally:
            process.kill()


def submitted(gateway: GatewayProcess) -> str:
    """The URL of a job, which goes on without this client."""
    body = {"model": "null", "prompt": PROMPT, "max_tokens": TOKENS, "stream": True}
    headers = {"x-rose-on-disconnect": "continue"}
    url = f"{gateway.url}/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=90) as answer:
        return f"{gateway.url}/jobs/{answer.headers['x-rose-job-id']}"


def kill_writer(job_url: str, workers: list[WorkerProcess]) -> None:
    (choice,) = httpx.get(job_url, timeout=90).json()["choices"]
    (busy,) = choice["workers"]
    next(worker for worker in workers if worker.name == busy["worker"]).kill()


@pytest.mark.parametrize("live", ["long-poll", "sse"])
@pytest.mark.parametrize("view", ["text", "events"])
def test_each_byte_comes_once_though_worker_and_gateway_are_killed(
    node: Node,
    project: Path,
    services: tuple[list[WorkerProcess], GatewayProcess],
    view: str,
    live: str,
) -> None:
    # given
    workers, gateway = services
    job_url = submitted(gateway)
    with reading(node, project, f"{job_url}/stream/{view}", live) as reader:
        reader.read(5)
        # when
        kill_writer(job_url, workers)
        reader.read(1)
        gateway.kill()
        gateway.start()
        reader.read_all()
    # then
    if view == "text":
        assert "".join(piece["text"] for piece in reader.pieces) == echoed_text(PROMPT, TOKENS)
    else:
        *tokens, end = [item for piece in reader.pieces for item in piece["items"]]
        assert [event["index"] for event in tokens] == list(range(TOKENS))
        assert "".join(event["text"] for event in tokens) == echoed_text(PROMPT, TOKENS)
        assert (end["type"], end["reason"], end["index"]) == ("finished", "length", TOKENS)
    offsets = [piece["offset"] for piece in reader.pieces]
    assert offsets == sorted(offsets)
