"""Other queues, each driven by its runner in `benchmarks.peers`, in the environment that has it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.queue.stage import Contender, ForeignWorker

_ROOT = Path(__file__).parents[2]
_IN_PYTHON = ("taskiq", "dramatiq", "arq", "celery", "rq")
_TIMEOUT_S = 300
#: Jobs in a measurement of a queue that takes a millisecond or more for each.
_MAX_JOBS = 5000


@dataclass(frozen=True)
class Peer(Contender):
    name: str
    versions: Mapping[str, str]
    max_jobs: int | None
    command: Sequence[str]
    environment: Mapping[str, str]

    async def submit(self, url: str, jobs: int) -> float:
        seconds: float = await self._ask(url, "submit", jobs)
        return seconds

    async def enqueue(self, url: str, jobs: int) -> None:
        await self._ask(url, "enqueue", jobs)

    async def sleepers(self, url: str, jobs: int) -> None:
        await self._ask(url, "sleepers", jobs)

    async def finish_times(self, url: str, jobs: int) -> list[float]:
        times: list[float] = await self._ask(url, "finish_times", jobs)
        return times

    async def latencies(self, url: str, jobs: int) -> list[float]:
        seconds: list[float] = await self._ask(url, "latencies", jobs)
        return seconds

    def worker(self, url: str) -> ForeignWorker:
        return self._worker(url, "0")

    def sleeping_worker(self, url: str, slots: int) -> ForeignWorker:
        return self._worker(url, str(slots))

    def _worker(self, url: str, slots: str) -> ForeignWorker:
        """Ready once it has answered a job."""
        return ForeignWorker(
            [*self.command, "worker", slots],
            ready=lambda _: bool(ask(self.command, self._variables(url), "latencies", 1)),
            environment=self._variables(url),
        )

    def _variables(self, url: str) -> dict[str, str]:
        return {"PEER_REDIS_URL": url, **self.environment}

    async def _ask(self, url: str, what: str, number: int) -> Any:
        return await asyncio.to_thread(ask, self.command, self._variables(url), what, number)


def find_peers(pythons: Sequence[str], bullmq: Path | None) -> tuple[list[Peer], list[str]]:
    """Those that are installed, each in the first python that has it; the names of the others."""
    peers = [
        peer
        for name in _IN_PYTHON
        if (peer := _find(name, _MAX_JOBS, _in_pythons(name, pythons), {}))
    ]
    node = shutil.which("node")
    if node is not None and bullmq is not None:
        runner = [node, str(_ROOT / "benchmarks/peers/bullmq.mjs")]
        if peer := _find("bullmq", None, [runner], {"BULLMQ_DIR": str(bullmq.resolve())}):
            peers.insert(0, peer)
    names = [peer.name for peer in peers]
    return peers, [name for name in ("bullmq", *_IN_PYTHON) if name not in names]


def _find(
    name: str,
    max_jobs: int | None,
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
) -> Peer | None:
    for command in commands:
        try:
            versions = ask(command, environment, "version")
        except RuntimeError:
            continue
        return Peer(name, versions, max_jobs, command, environment)
    return None


def _in_pythons(name: str, pythons: Sequence[str]) -> list[list[str]]:
    """The runner in each python that may have what it needs."""
    return [
        [python, "-m", f"benchmarks.peers.with_{name}"]
        for python in pythons
        if python != sys.executable or find_spec(name) is not None
    ]


def ask(command: Sequence[str], environment: Mapping[str, str], what: str, number: int = 0) -> Any:
    """What a runner answers.

    Raises:
        RuntimeError: it failed, or takes too long.
    """
    variables = {**os.environ, "PYTHONPATH": str(_ROOT), **environment}
    try:
        answer = subprocess.run(
            [*command, what, str(number)],
            capture_output=True,
            text=True,
            env=variables,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or error
        raise RuntimeError(f"{' '.join(command)} {what}: {str(output)[-800:]}") from None
    return json.loads(answer.stdout)
