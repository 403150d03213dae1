"""The blocking client in the place of the asyncio one: a thread for each stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Self, TypeAlias

from rose.protocol import Event
from rose_producer import AsyncClient, AsyncJob, Client, Job, Request

AnyClient: TypeAlias = "AsyncClient | BlockingClient"
AnyJob: TypeAlias = "AsyncJob | BlockingJob"


class BlockingClient:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._client = Client(**settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        self._client.close()

    async def submit_many(self, requests: Iterable[Request]) -> list[BlockingJob]:
        handles = await asyncio.to_thread(self._client.submit_many, list(requests))
        return [BlockingJob(handle) for handle in handles]

    def job(self, job_id: str) -> BlockingJob:
        return BlockingJob(self._client.job(job_id))


class BlockingJob:
    def __init__(self, handle: Job) -> None:
        self._handle = handle
        self.id = handle.id

    async def stream(self, cursor: int = 0) -> AsyncGenerator[Event, None]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread, closing(self._handle.stream(cursor)) as events:
            while (event := await loop.run_in_executor(thread, next, events, None)) is not None:
                yield event

    async def cancel(self) -> bool:
        return await asyncio.to_thread(self._handle.cancel)
