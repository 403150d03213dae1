"""What a token costs the worker, Redis and a streaming client, at the pace of an engine.

The null engine makes a token for each slot in steps of fixed length, as a model on these cores
might. It needs no processor time for it, so what is spent is what a model would have to go without.
"""

import asyncio
import time
from dataclasses import dataclass

from benchmarks.board import Board, at_most
from benchmarks.queue.ours import open_client, requests, start_worker
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import AsyncCase
from benchmarks.usage import CpuMeter
from rose_producer import AsyncClient, AsyncJob, TokenEvent

RATE = "tokens/s"
CPU = "processor time, us a token"
_ALL = "all three"
_SLOTS = 32
#: 3% of one core at 600 tokens/s. A step's threads wait for each other, so what one core does
#: beside it costs a step as much as if all did.
_MAX_CPU_US = 50
_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Paced(AsyncCase):
    tokens_per_s: int
    new_tokens: int
    title: str = "What a token costs, 32 streams at the pace of an engine"

    async def measure(self, board: Board, turn: int) -> None:  # noqa: ARG002 - one contender
        pace = {"max_batch_size": _SLOTS, "min_step_s": _SLOTS / self.tokens_per_s}
        with fresh_redis() as broker, start_worker(broker.url, **pace) as worker:
            worker.wait_ready()
            async with open_client(broker.url) as client:
                await self._run(client, 2)
                meter = CpuMeter(worker=worker.pid, redis=broker.pid)
                began = time.perf_counter()
                tokens = await self._run(client, self.new_tokens)
                seconds, used = time.perf_counter() - began, meter.used_s()
        board.add(_ALL, {RATE: tokens / seconds, CPU: sum(used.values()) / tokens * 1e6})
        for name, cpu in used.items():
            board.add(name, {CPU: cpu / tokens * 1e6})

    def judge(self, board: Board) -> None:
        board.check_figure((CPU, _ALL), at_most(_MAX_CPU_US))

    async def _run(self, client: AsyncClient, new_tokens: int) -> int:
        """How many tokens the streams brought."""
        jobs = await client.submit_many(requests(_SLOTS, new_tokens))
        return sum(await asyncio.gather(*map(_count, jobs)))


async def _count(job: AsyncJob) -> int:
    return sum(
        [
            len(event.token_ids)
            async for event in job.stream(timeout_s=_TIMEOUT_S)
            if isinstance(event, TokenEvent)
        ]
    )
