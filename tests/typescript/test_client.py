"""The TypeScript client against real gateways and workers, which are killed under it."""

import json
import os
import shutil
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
from tests.typescript.conftest import PROGRAMS

MODEL = "null"
PROMPT = "the quick brown fox, "
#: A chat's prompt as the null engine reads it: its text.
TOKENS = 150


@pytest.fixture
def services() -> Iterator[tuple[list[WorkerProcess], list[GatewayProcess]]]:
    """Two workers, slow enough to be killed in mid-sentence, and two gateways."""
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker())
        workers = [
            stack.enter_context(serving(f"worker-{name}", broker.url, min_step_s=0.03))
            for name in "ab"
        ]
        gateways = [
            stack.enter_context(GatewayProcess(f"gateway-{name}", broker.url)) for name in "ab"
        ]
        for gateway in gateways:
            gateway.wait_ready()
        yield workers, gateways


def origins(gateways: list[GatewayProcess]) -> str:
    return ",".join(gateway.url.removesuffix("/v1") for gateway in gateways)


class Follower:
    """`follow.mjs`, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.job: str = self._line()["job"]
        self.events: list[dict[str, Any]] = []

    def read(self, count: int) -> None:
        self.events += [self._line() for _ in range(count)]

    def read_all(self) -> None:
        assert self.process.stdout is not None
        self.events += [json.loads(line) for line in self.process.stdout]
        assert self.process.wait() == 0

    @property
    def text(self) -> str:
        return "".join(event["text"] for event in self.events)

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@contextmanager
def following(
    node: Node, project: Path, gateways: list[GatewayProcess], **given: str
) -> Iterator[Follower]:
    settings = {"URLS": origins(gateways), "MODEL": MODEL, "PROMPT": PROMPT, "TOKENS": str(TOKENS)}
    with subprocess.Popen(
        [node.program, "follow.mjs"],
        cwd=project,
        env={**os.environ, **settings, **given},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Follower(process)
        finally:
            process.kill()


@pytest.mark.parametrize("program", ["client.test.mjs", "transport.test.mjs"])
def test_the_package_works(
    node: Node, project: Path, services: tuple[Any, Any], program: str
) -> None:
    _, gateways = services
    ended = node.run(
        *("--test", "--test-reporter=tap", program),
        cwd=project,
        env={**os.environ, "URLS": origins(gateways), "MODEL": MODEL},
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-1000:]
    assert "\n# skipped 0\n" in ended.stdout


def test_right_and_wrong_calls_are_told_apart_as_one_types(
    node: Node, workshop: Path, project: Path
) -> None:
    shutil.copy(PROGRAMS / "calls.ts", project)
    judged = node.run(
        str(workshop / "node_modules" / "typescript" / "bin" / "tsc"),
        *("--noEmit", "--strict", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess"),
        *("--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom,dom.asynciterable"),
        "calls.ts",
        cwd=project,
    )
    assert judged.returncode == 0, judged.stdout


def test_a_stream_goes_on_when_its_worker_and_its_gateway_are_killed(
    node: Node, project: Path, services: tuple[list[WorkerProcess], list[GatewayProcess]]
) -> None:
    # given
    workers, gateways = services
    with following(node, project, gateways) as follower:
        follower.read(10)
        # when
        (choice,) = httpx.get(f"{gateways[1].url}/jobs/{follower.job}", timeout=90).json()[
            "choices"
        ]
        (busy,) = choice["workers"]
        next(worker for worker in workers if worker.name == busy["worker"]).kill()
        gateways[0].kill()
        follower.read_all()
    # then
    assert follower.text == echoed_text(PROMPT, TOKENS)
    ids = [event["id"] for event in follower.events]
    assert len(set(ids)) == len(ids)
    assert follower.events[-2]["reason"] == "length"


def test_another_process_goes_on_where_one_was_killed(
    node: Node, project: Path, services: tuple[list[WorkerProcess], list[GatewayProcess]]
) -> None:
    # given
    _, gateways = services
    with following(node, project, gateways) as first:
        first.read(10)
        first.process.kill()
    # when
    where = {"JOB": first.job, "CURSOR": first.events[-1]["id"]}
    with following(node, project, gateways, **where) as second:
        second.read_all()
    # then
    assert first.text + second.text == echoed_text(PROMPT, TOKENS)
