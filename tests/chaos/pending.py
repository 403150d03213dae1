"""How long orphans wait for another worker while thousands of jobs are in the hands of others.

    python -m tests.chaos.pending [--workers 9] [--slots 1122] [--rounds 3]

All workers are full, with the settings that they have by default (a lease of 10 s). Then a few jobs
of each are cancelled, so that it has a few free slots, and one worker is killed.
"""

import argparse
import asyncio
import math
import statistics
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack

import redis

from rose.protocol import Partition
from rose.protocol.status import STATUS_FIELDS, read_status
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, AsyncJob, JobStatus, Request
from tests.chaos.outages import serving

#: A token of each of ten thousand jobs, which must not be what is measured.
_STEP_S = 5.0
_POLL_S = 0.5
_QUEUE = "default"
_ENDLESS = Request("abc", sampling={"max_new_tokens": 100_000})


class Crowd:
    """The jobs that were submitted, and where they are."""

    def __init__(self, client: AsyncClient, server: redis.Redis) -> None:
        self._client = client
        self._redis = server
        self._jobs: list[AsyncJob] = []

    async def run(self, count: int) -> None:
        """So many more, until all of them do."""
        self._jobs += await self._client.submit_many([_ENDLESS] * count)
        while len(await self.running()) < len(self._jobs):
            await asyncio.sleep(_POLL_S)

    async def running(self) -> list[JobStatus]:
        every = await asyncio.to_thread(self._statuses)
        return [status for status in every if status.status == "running"]

    def _statuses(self) -> list[JobStatus]:
        """Past the client, at once: thousands of calls must not be what is measured."""
        pipeline = self._redis.pipeline(transaction=False)
        for job in self._jobs:
            pipeline.hmget(Partition(_QUEUE).state(job.id), STATUS_FIELDS)
        fields = pipeline.execute()
        return [read_status(job.id, of) for job, of in zip(self._jobs, fields, strict=True)]

    async def cancel(self, count: int, workers: Sequence[str]) -> None:
        """So many of each worker, until their slots are free."""
        left = Counter(dict.fromkeys(workers, count))
        chosen = set()
        for status in await self.running():
            if status.worker is not None and left[status.worker] > 0:
                left[status.worker] -= 1
                chosen.add(status.job_id)
        gone = [job for job in self._jobs if job.id in chosen]
        self._jobs = [job for job in self._jobs if job.id not in chosen]
        await asyncio.gather(*(job.cancel() for job in gone))
        while any([(await job.status()).status == "running" for job in gone]):
            await asyncio.sleep(_POLL_S)

    async def taken(self, orphans: Collection[str]) -> list[JobStatus]:
        """Those of the dead worker, once others have them all."""
        while True:
            now = [status for status in await self.running() if status.job_id in orphans]
            if all(status.epoch > 1 for status in now):
                return now
            await asyncio.sleep(_POLL_S)


async def measure(workers: int, slots: int, rounds: int) -> None:
    names, free = [f"full-{n}" for n in range(workers)], max(1, slots // 100)
    spare = workers * free
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedBroker(fake=False))
        direct = stack.enter_context(redis.Redis(port=server.port, protocol=2))
        async with AsyncClient(redis_url=server.url, queue=_QUEUE) as client:
            crowd = Crowd(client, direct)
            for name in names:
                await serving(stack, name, server.url, min_step_s=_STEP_S, max_batch_size=slots)
                await crowd.run(slots)
            for n in range(rounds):
                victim = await serving(
                    stack, f"victim-{n}", server.url, min_step_s=_STEP_S, max_batch_size=spare
                )
                await crowd.run(spare)
                await crowd.cancel(free, names)
                print(await _kill(victim, crowd), flush=True)


async def _kill(victim: WorkerProcess, crowd: Crowd) -> str:
    before = await crowd.running()
    orphans = {status.job_id for status in before if status.worker == victim.name}
    killed_ms = time.time() * 1000
    victim.kill()
    taken = await crowd.taken(orphans)
    waits = [((status.started_ms or math.inf) - killed_ms) / 1000 for status in taken]
    others = {status.job_id: status.epoch for status in before if status.job_id not in orphans}
    moved = sum(others.get(s.job_id, s.epoch) != s.epoch for s in await crowd.running())
    return (
        f"{len(before)} entries pending: {len(taken)} of {len(orphans)} orphans were taken "
        f"{min(waits):.2f} (first), {statistics.median(waits):.2f} (median), {max(waits):.2f} s "
        f"(last) after the kill; {moved} others moved"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=9)
    parser.add_argument("--slots", type=int, default=1122)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    asyncio.run(measure(options.workers, options.slots, options.rounds))


if __name__ == "__main__":
    main()
