"""Jobs of a high priority beside a worker whose slots are full of long low ones."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.board import Board, at_least, at_most, percentile
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import Case, in_turn
from rose.protocol import Priority
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, AsyncJob

_FIRST_P50, _FIRST_P99 = (f"urgent: time to first token, {rank} ms" for rank in ("p50", "p99"))
_TOKENS = "tokens/s of all"
_HANDED_BACK = "jobs handed back"

_OFF, _ON = "without hand-backs", "with hand-backs"
_HAND_BACKS = {_OFF: 0, _ON: 3}

#: Words of a low job's prompt and of an urgent one's.
_LOW_WORDS, _URGENT_WORDS = 300, 20
_URGENT_TOKENS = 16


@dataclass(slots=True)
class _Seen:
    first_token_s: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Urgent(Case):
    """`lows`: jobs of `tokens` each. An urgent one comes every `every_s` until they have ended."""

    slots: int
    lows: int
    tokens: int
    every_s: float

    @property
    def title(self) -> str:  # type: ignore[override]
        return (
            f"An urgent job every {self.every_s:g} s beside {self.lows} low ones of {self.tokens} "
            f"tokens, {self.slots} slots"
        )

    def round(self, board: Board, turn: int) -> None:
        for name in in_turn([_OFF, _ON], turn):
            with fresh_redis() as broker:
                worker = WorkerProcess(
                    "worker",
                    broker.url,
                    max_batch_size=self.slots,
                    hand_backs=_HAND_BACKS[name],
                    log_level="warning",
                )
                with worker:
                    worker.wait_ready()
                    seen = asyncio.run(self._watched(broker.url))
                    handed_back = worker.metrics()["rose_jobs_handed_back_total"]
            board.add(
                name,
                {
                    _FIRST_P50: percentile(seen.first_token_s, 50) * 1000,
                    _FIRST_P99: percentile(seen.first_token_s, 99) * 1000,
                    _TOKENS: seen.tokens / seen.seconds,
                    _HANDED_BACK: handed_back,
                },
            )

    def judge(self, board: Board) -> None:
        what = "tokens/s with hand-backs to that without"
        board.check_ratio(what, (_TOKENS, _ON), (_TOKENS, _OFF), at_least(0.9))
        what = "urgent: time to first token, p50, to that without"
        board.check_ratio(what, (_FIRST_P50, _ON), (_FIRST_P50, _OFF), at_most(0.5))

    async def _watched(self, url: str) -> _Seen:
        seen = _Seen()
        async with AsyncClient(redis_url=url) as client:
            await (await client.submit("x", max_new_tokens=1)).result(60)
            began = time.perf_counter()
            lows = [await self._submit(client, n, Priority.LOW) for n in range(self.lows)]
            reading = asyncio.gather(*(self._read(job, seen) for job in lows))
            urgent: list[asyncio.Task[None]] = []
            while not reading.done():
                await asyncio.wait([reading], timeout=self.every_s)
                urgent.append(asyncio.create_task(self._one_urgent(client, len(urgent), seen)))
            await asyncio.gather(reading, *urgent)
            seen.seconds = time.perf_counter() - began
        return seen

    async def _submit(self, client: AsyncClient, number: int, priority: Priority) -> AsyncJob:
        is_low = priority is Priority.LOW
        words = _LOW_WORDS if is_low else _URGENT_WORDS
        options: dict[str, Any] = {"max_new_tokens": self.tokens if is_low else _URGENT_TOKENS}
        return await client.submit(
            f"{priority.value} {number} " + "a boat " * (words // 2),
            priority=priority,
            ignore_eos=True,
            **options,
        )

    async def _read(self, job: AsyncJob, seen: _Seen) -> None:
        async for event in job.stream():
            if event.type == "tokens":
                seen.tokens += len(event.token_ids)

    async def _one_urgent(self, client: AsyncClient, number: int, seen: _Seen) -> None:
        began = time.perf_counter()
        job = await self._submit(client, number, Priority.HIGH)
        first = None
        async for event in job.stream():
            if event.type == "tokens":
                first = first or time.perf_counter()
                seen.tokens += len(event.token_ids)
        seen.first_token_s.append((first or time.perf_counter()) - began)
