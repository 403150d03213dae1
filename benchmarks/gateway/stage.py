"""What every measurement stands on: Redis, a worker, a gateway, and a process that loads them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway.load import NO_LIMIT
from benchmarks.queue.stage import fresh_redis
from rose_cli.local.services import GatewayProcess, WorkerProcess

PROMPT = "Once upon a time, "


@dataclass(frozen=True, slots=True)
class Stage:
    redis_url: str
    worker: WorkerProcess
    gateway: GatewayProcess
    model: str
    """as the gateway lists it"""

    async def through_gateway(self, count: int, tokens: int) -> dict[str, Any]:
        return await _loaded("gateway", **self._gateway_load(count, tokens))

    async def through_client(self, count: int, tokens: int) -> dict[str, Any]:
        return await _loaded(
            "client", redis_url=self.redis_url, prompt=PROMPT, count=count, tokens=tokens
        )

    async def first_tokens(self, count: int) -> dict[str, Any]:
        return await _loaded("first", redis_url=self.redis_url, **self._gateway_load(count, 2))

    async def held_open(self, count: int, tokens: int) -> Load:
        """Returns once so many streams are open."""
        load = await Load.start("open", **self._gateway_load(count, tokens))
        if (line := await load.line()) != "open":
            raise RuntimeError(f"the streams are not open: {line}")
        return load

    async def batch_by_hand(self, source: Path, output: Path) -> float:
        """Seconds."""
        files = {"source": str(source), "output": str(output)}
        result = await _loaded("batch", redis_url=self.redis_url, **files)
        return float(result["seconds"])

    async def batch_run(self, source: Path, output: Path) -> float:
        """Seconds. Raises: RuntimeError: it failed."""
        command = [sys.executable, "-m", "rose_cli", "batch", "run", str(source), "-o", str(output)]
        command += ["--redis-url", self.redis_url, "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            output_json, _ = await process.communicate()
        finally:
            if process.returncode is None:  # it would wait for a Redis that does not come back
                process.kill()
        if process.returncode:
            raise RuntimeError(f"rose batch run ended with status {process.returncode}")
        seconds: float = json.loads(output_json)["seconds"]
        return seconds

    def _gateway_load(self, count: int, tokens: int) -> dict[str, Any]:
        return {
            "url": self.gateway.url,
            "model": self.model,
            "prompt": PROMPT,
            "count": count,
            "tokens": tokens,
        }


class Load:
    """The process that loads."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, what: str, **given: Any) -> Load:
        command = [sys.executable, "-m", "benchmarks.gateway.load", what, json.dumps(given)]
        return cls(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))

    async def line(self) -> str:
        """Raises: RuntimeError: it has ended without a word."""
        assert self._process.stdout is not None  # noqa: S101 - it has a pipe
        line = (await self._process.stdout.readline()).decode().strip()
        if not line:
            raise RuntimeError(f"the load ended with status {await self._process.wait()}")
        return line

    async def result(self) -> dict[str, Any]:
        """Of all its streams, when they have ended."""
        result: dict[str, Any] = json.loads(await self.line())
        await self._process.wait()
        return result


async def _loaded(what: str, **given: Any) -> dict[str, Any]:
    return await (await Load.start(what, **given)).result()


@contextmanager
def stage(**worker: Any) -> Iterator[Stage]:
    """`worker`: what `WorkerProcess` takes, settings and others.

    Logs of neither worker nor gateway have a line for each job.
    """
    with (
        fresh_redis() as broker,
        WorkerProcess(
            "bench", broker.url, log_level="warning", **NO_LIMIT, **worker
        ) as worker_process,
        GatewayProcess("bench", broker.url, log_level="warning", **NO_LIMIT) as gateway,
    ):
        worker_process.wait_ready()
        gateway.wait_ready()
        models = json.loads(gateway.http("/v1/models") or "")["data"]
        yield Stage(broker.url, worker_process, gateway, models[0]["id"])
