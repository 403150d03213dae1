"""A worker is killed in the middle of conversations, and another one takes them over."""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.board import Board, below, percentile
from benchmarks.placement.conversations import text_of
from benchmarks.placement.models import long_model
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import Case, in_turn
from rose.errors import JobFailed
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, AsyncJob

NEXT_P50 = "from the new worker's start of work to a job's next token, p50 ms"
NEXT_MAX = "the same for the last job, ms"
FOUND = "share of the tokens of the jobs taken over that it found in files"

#: By the time that the new worker has loaded its model nobody holds the jobs any more.
_LEASE_S = 2.0
#: What the killed worker has still said arrives by then.
_IN_FLIGHT_S = 0.5
#: Tokens of each answer before the worker is killed, and of a whole one.
_ANSWERED, _TOKENS = 24, 600

_TIERS = {"without": False, "with a second tier": True}


@dataclass(frozen=True, slots=True)
class Restart(Case):
    """`words` of each prompt; the built-in model makes 1.4 tokens of one."""

    conversations: int
    words: int
    bytes: int = 2**30

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"A worker is killed in the middle of {self.conversations} conversations"

    def round(self, board: Board, turn: int) -> None:
        for name in in_turn(list(_TIERS), turn):
            board.add(name, self._measured(f"{turn}", tier=_TIERS[name]))

    def judge(self, board: Board) -> None:
        with_tier = "with a second tier"
        what = f"{NEXT_P50}: with a second tier to without"
        board.check_ratio(what, (NEXT_P50, with_tier), (NEXT_P50, "without"), below(1.0))

    def _measured(self, salt: str, *, tier: bool) -> Mapping[str, float]:
        with ExitStack() as stack:
            broker = stack.enter_context(fresh_redis())
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rose-restart-"))
            settings: dict[str, Any] = {
                "model": str(long_model(folder)),
                "kv_cache_tokens": 200_000,
                "lease_s": _LEASE_S,
                "log_level": "warning",
            }
            if tier:
                settings["second_tier_bytes"] = self.bytes
                settings["second_tier_folder"] = str(Path(folder, "tier"))
            workers = [WorkerProcess(name, broker.url, **settings) for name in ("first", "second")]
            first = stack.enter_context(workers[0])
            first.wait_ready()
            return asyncio.run(self._converse(broker.url, first, workers[1], stack, salt))

    async def _converse(
        self, url: str, first: WorkerProcess, second: WorkerProcess, stack: ExitStack, salt: str
    ) -> Mapping[str, float]:
        async with AsyncClient(redis_url=url, result_ttl_s=600) as client:
            jobs = [
                await client.submit(
                    text_of(f"{salt}/{number}", self.words),
                    max_new_tokens=_TOKENS,
                    ignore_eos=True,
                )
                for number in range(self.conversations)
            ]
            watched = [_Watched(job) for job in jobs]
            streams = [asyncio.create_task(one.follow()) for one in watched]
            while not all(one.tokens >= _ANSWERED for one in watched):
                await asyncio.sleep(0.005)
            first.kill()
            killed_at = time.perf_counter()
            stack.enter_context(second)
            await asyncio.to_thread(second.wait_ready)
            ready_at = time.perf_counter()
            while not all(one.last_at > killed_at + _IN_FLIGHT_S for one in watched):
                await asyncio.sleep(0.005)
            metrics = second.metrics()
            for stream in streams:
                stream.cancel()
        waits = [(one.next_after(killed_at + _IN_FLIGHT_S) - ready_at) * 1000 for one in watched]
        asked = metrics.get("rose_second_tier_query_tokens_total", 0.0)
        found = metrics.get("rose_second_tier_hit_tokens_total", 0.0)
        return {
            NEXT_P50: percentile(waits, 50),
            NEXT_MAX: max(waits),
            FOUND: found / max(1.0, asked),
        }


class _Watched:
    """A job's tokens, and when they came."""

    def __init__(self, job: AsyncJob) -> None:
        self._job = job
        self._came: list[float] = []
        self.tokens = 0

    @property
    def last_at(self) -> float:
        return self._came[-1] if self._came else 0.0

    async def follow(self) -> None:
        """Raises: JobFailed: it ends before it was watched enough."""
        async for event in self._job.stream():
            if event.type != "tokens":
                raise JobFailed(f"{self._job.id} has {event.type} after {self.tokens} tokens")
            self._came.append(time.perf_counter())
            self.tokens += len(event.token_ids)

    def next_after(self, moment: float) -> float:
        """When the first tokens after that came."""
        return next(came for came in self._came if came > moment)
