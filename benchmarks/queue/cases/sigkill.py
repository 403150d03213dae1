"""A worker killed with SIGKILL while it runs 50 jobs, and started again at once."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from benchmarks.board import Board, at_least, at_most
from benchmarks.peers.common import SLEEP_S, SLEPT, STARTED
from benchmarks.queue.ours import (
    PARTITION,
    Listener,
    Ours,
    contiguous,
    open_client,
    read_ended,
    requests,
    start_worker,
)
from benchmarks.queue.peers import Peer
from benchmarks.queue.plain import connect
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import AsyncCase
from rose.protocol import decode_event
from rose_cli.local.services import WorkerProcess
from rose_producer import FinishedEvent, TokenEvent

SEAMLESS = "jobs resumed from their last token"
LOGGED = "tokens logged at the kill"
AGAIN = "tokens computed again"
RESUMED = "resumed after the kill, s"
RESUMED_LAST = "last one resumed after the kill, s"
COMPLETED = "jobs completed"
DONE = "last one done after the kill, s"

JOBS = 50
LEASE_S = 10.0
_STEP_S = 0.05
_TIMEOUT_S = 120.0
_COUNT_TRIES = 40
_START_LIMIT_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Sigkill(AsyncCase):
    new_tokens: int
    peers: Sequence[Peer]
    """take part in the first round only: what they do is a matter of timers and takes minutes"""
    title: str = f"SIGKILL with {JOBS} running jobs of 5 s, restarted at once, defaults"

    async def measure(self, board: Board, turn: int) -> None:
        board.add(Ours.name, await self._ours())
        for peer in self.peers if turn == 0 else ():
            try:
                board.add(peer.name, await _kill_and_restart(peer))
            except RuntimeError as error:
                board.notes.append(str(error))

    async def _ours(self) -> dict[str, float]:
        with fresh_redis() as broker, self._worker(broker.url) as first:
            first.wait_ready()
            async with connect(broker.url) as observer, open_client(broker.url) as client:
                jobs = await client.submit_many(requests(JOBS, self.new_tokens))
                listeners = [Listener(job) for job in jobs]
                listening = [asyncio.create_task(one.run()) for one in listeners]
                ids = [job.id for job in jobs]
                await self._half_way(observer, ids)
                first.kill()
                killed = time.perf_counter()
                with self._worker(broker.url) as second:
                    logged = await _logged(observer, ids)
                    await asyncio.gather(*listening)
                    left = JOBS * self.new_tokens - sum(logged)
                    computed = await _computed(second, at_least=left)
                    seamless = await self._seamless(observer, ids)
        done = [
            received_s
            for listener in listeners
            for event, received_s in listener.events
            if isinstance(event, FinishedEvent)
        ]
        resumed = [_resumed(one, count) for one, count in zip(listeners, logged, strict=True)]
        waits = [received_s - killed for received_s in resumed if received_s is not None]
        return {
            COMPLETED: len(done),
            SEAMLESS: seamless,
            LOGGED: sum(logged),
            AGAIN: computed - left,
            RESUMED: statistics.median(waits),
            RESUMED_LAST: max(waits),
            DONE: max(done) - killed,
        }

    def judge(self, board: Board) -> None:
        for metric in (COMPLETED, SEAMLESS):
            board.check_every((metric, Ours.name), at_least(JOBS))
        board.check_every((AGAIN, Ours.name), at_most(0))
        board.check_every((RESUMED_LAST, Ours.name), at_most(LEASE_S + 2))

    def _worker(self, url: str) -> WorkerProcess:
        """Defaults, but with slots for all and a step as slow as a large model's."""
        return start_worker(url, max_batch_size=JOBS, min_step_s=_STEP_S)

    async def _half_way(self, observer: redis.asyncio.Redis, ids: Sequence[str]) -> None:
        while min(await _logged(observer, ids)) < self.new_tokens // 2:
            await asyncio.sleep(_STEP_S)

    async def _seamless(self, observer: redis.asyncio.Redis, ids: Sequence[str]) -> int:
        """Jobs of exactly two workers whose log counts every token once, in order."""
        ended = await read_ended(observer, ids)
        pipeline = observer.pipeline(transaction=False)
        for job_id in ids:
            pipeline.xrange(PARTITION.tokens(job_id))
        logs = await pipeline.execute()
        return sum(
            job.epoch == 2
            and contiguous(decode_event(fields[b"event"]) for _, fields in log) == job.tokens
            for job, log in zip(ended, logs, strict=True)
        )


async def _computed(worker: WorkerProcess, *, at_least: int) -> float:
    """Tokens that the worker has made; it counts them a moment after its subscribers have them."""
    for _ in range(_COUNT_TRIES):
        count = worker.metrics()["rose_generated_tokens_total"]
        if count >= at_least:
            break
        await asyncio.sleep(_STEP_S)
    return count


async def _logged(observer: redis.asyncio.Redis, ids: Sequence[str]) -> list[int]:
    pipeline = observer.pipeline(transaction=False)
    for job_id in ids:
        pipeline.hget(PARTITION.state(job_id), "tokens")
    return [int(count or 0) for count in await pipeline.execute()]


def _resumed(listener: Listener, logged: int) -> float | None:
    """When the first token came that was not logged at the kill."""
    times = (
        received_s
        for event, received_s in listener.events
        if isinstance(event, TokenEvent) and event.index >= logged
    )
    return next(times, None)


async def _kill_and_restart(peer: Peer) -> dict[str, float]:
    """The same for another queue: jobs that sleep for 5 s, with its own defaults.

    Kill the worker, and all its children, half-way; start it again at once.

    Raises:
        RuntimeError: the jobs never ran all at once, so there is nothing to compare.
    """
    with fresh_redis() as broker, peer.sleeping_worker(broker.url, JOBS) as worker:
        await asyncio.to_thread(worker.wait_ready)
        await peer.sleepers(broker.url, JOBS)
        async with connect(broker.url) as client:
            limit = time.monotonic() + _START_LIMIT_S
            while (started := await client.scard(STARTED)) < JOBS:
                if time.monotonic() > limit or await client.zcard(SLEPT):
                    raise RuntimeError(f"{peer.name}: only {started} of {JOBS} jobs run at once")
                await asyncio.sleep(_POLL_S)
            await asyncio.sleep(SLEEP_S / 2)
            worker.kill()
            killed, killed_at = time.monotonic(), time.time()
            worker.start()
            while await client.zcard(SLEPT) < JOBS and time.monotonic() < killed + _TIMEOUT_S:
                await asyncio.sleep(_POLL_S)
            last: Any = await client.zrange(SLEPT, -1, -1, withscores=True)
            completed = await client.zcard(SLEPT)
    done = {DONE: last[0][1] - killed_at} if last else {}
    return {COMPLETED: completed, **done}
