"""An embedding queue: a redis-server, a worker and a client, all on this machine's cores."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.encoders.contenders import Contender, Vectors
from benchmarks.queue.stage import fresh_redis
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient


class Queued(Contender):
    """The worker starts as it does by default, and each text is a job."""

    name = "through the queue"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            broker = stack.enter_context(fresh_redis())
            model = str(self._folder)
            worker = WorkerProcess(
                "embedder", broker.url, model=model, task="embed", dtype="float32"
            )
            stack.enter_context(worker).wait_ready()
            self._runner = stack.enter_context(asyncio.Runner())
            self._client = AsyncClient(redis_url=broker.url)
            stack.callback(lambda: self._runner.run(self._client.aclose()))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def embed(self, texts: Sequence[str], callers: int) -> Vectors:
        return np.asarray(self._runner.run(self._embed(texts, callers)), np.float32)

    async def _embed(self, texts: Sequence[str], callers: int) -> list[Sequence[float]]:
        rows: list[Sequence[float]] = [()] * len(texts)
        waiting = iter(enumerate(texts))

        async def call() -> None:
            for number, text in waiting:
                rows[number] = (await self._client.embed([text])).vectors[0]

        await asyncio.gather(*(call() for _ in range(callers)))
        return rows
