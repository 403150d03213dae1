"""The same SIGKILL for other queues: 50 jobs that sleep for 5 s, with each queue's defaults."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.peers.common import SLEEP_S, SLEPT, STARTED
from benchmarks.queue.peers import Peer
from benchmarks.queue.plain import connect
from benchmarks.queue.stage import fresh_redis

COMPLETED = "jobs completed"
DONE = "last one done after the kill, s"
_START_LIMIT_S = 60.0
_POLL_S = 0.1


async def kill_and_restart(peer: Peer, jobs: int, patience_s: float) -> dict[str, float]:
    """Kill the worker, and all its children, half-way; start it again at once.

    Raises:
        RuntimeError: the jobs never ran all at once, so there is nothing to compare.
    """
    with fresh_redis() as broker, peer.sleeping_worker(broker.url, jobs) as worker:
        await asyncio.to_thread(worker.wait_ready)
        await peer.sleepers(broker.url, jobs)
        async with connect(broker.url) as client:
            limit = time.monotonic() + _START_LIMIT_S
            while (started := await client.scard(STARTED)) < jobs:
                if time.monotonic() > limit or await client.zcard(SLEPT):
                    raise RuntimeError(f"{peer.name}: only {started} of {jobs} jobs run at once")
                await asyncio.sleep(_POLL_S)
            await asyncio.sleep(SLEEP_S / 2)
            worker.kill()
            killed, killed_at = time.monotonic(), time.time()
            worker.start()
            while await client.zcard(SLEPT) < jobs and time.monotonic() < killed + patience_s:
                await asyncio.sleep(_POLL_S)
            last: Any = await client.zrange(SLEPT, -1, -1, withscores=True)
            completed = await client.zcard(SLEPT)
    done = {DONE: last[0][1] - killed_at} if last else {}
    return {COMPLETED: completed, **done}
