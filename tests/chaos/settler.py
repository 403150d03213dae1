"""Jobs that are over for good are checked while the run goes on, and their results expire.

So neither the harness nor Redis holds more of a long run than of a short one. The checks are those
of the end, of the same evidence.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rose.protocol import Partition, partition_of
from tests.chaos.answers import null_answer
from tests.chaos.context import QUEUE
from tests.chaos.evidence import GONE, RedisState, read_jobs
from tests.chaos.faults.scene import Scene
from tests.chaos.findings import Finding
from tests.chaos.invariants import Invariant
from tests.chaos.job_check import check_job
from tests.chaos.job_record import JobRecord, summarize
from tests.chaos.plan import RAW_BASE, Kind, Plan

_EVERY_S = 1.0
_BATCH = 100
#: Longer than any fault, so whoever would still write to a job has written.
_RESTED_S = 30.0


class Settler:
    def __init__(self, scene: Scene, plan: Plan, rested_s: float = _RESTED_S) -> None:
        self._scene = scene
        self._plan = plan
        self._rested_s = rested_s
        self._expired: dict[int, Sequence[str]] = {}
        """job: its keys, which must be gone the next time"""
        self.state = RedisState()
        """where the jobs stood in their streams"""
        self.found: list[Finding] = []
        self.over = False
        """the run is: no job is settled any more"""

    @property
    def ids(self) -> frozenset[str]:
        """Of all jobs that were settled."""
        progress = self._scene.progress
        return frozenset(progress.submitted[number] for number in progress.settled)

    async def run(self) -> None:
        while not self.over:
            await self.settle()
            await asyncio.sleep(_EVERY_S)

    async def settle(self) -> None:
        """All that are over."""
        rested = self._rested()
        for start in range(0, len(rested), _BATCH):
            if self.over:
                return
            async with self._scene.redis_lock:  # it is up, and stays up meanwhile
                await self._settle(rested[start : start + _BATCH])

    async def _settle(self, rested: Sequence[int]) -> None:
        scene = self._scene
        numbers = [number for number in rested if not scene.is_protected(number)]
        ids = {n: scene.progress.submitted[n] for n in numbers if n not in scene.expired}
        ids = await asyncio.to_thread(self._mortal, ids)
        await asyncio.to_thread(self._read, ids)
        for number in numbers:
            if number in ids or number in scene.expired:
                self._check(number, ids.get(number))
        await asyncio.to_thread(self._expire, ids)

    def _mortal(self, ids: Mapping[int, str]) -> dict[int, str]:
        """Those whose results expire. The entry of one that was cancelled while it waited stands in
        its stream until a worker sees it, and so long it must be known.

        Raises: redis.RedisError
        """
        mortal = {}
        for number, job_id in ids.items():
            partition = Partition(QUEUE, partition_of(job_id))
            client = self._scene.topology.client_of(partition)
            if int(client.pttl(partition.state(job_id))) > 0:
                mortal[number] = job_id
        return mortal

    def _rested(self) -> list[int]:
        progress, now = self._scene.progress, time.monotonic()
        return [
            number
            for number in progress.delivered
            if number < RAW_BASE
            and now - progress.ended.get(number, now) >= self._rested_s
            and not self._scene.is_protected(number)
            and self._plan.job(number).kind is not Kind.POISON  # it may be retried
        ]

    def _read(self, ids: Mapping[int, str]) -> None:
        """Raises: redis.RedisError"""
        by_partition: dict[int, list[str]] = defaultdict(list)
        for job_id in ids.values():
            by_partition[partition_of(job_id)].append(job_id)
        for index, own in by_partition.items():
            partition = Partition(QUEUE, index)
            read_jobs(self.state, self._scene.topology.client_of(partition), partition, own)

    def _check(self, number: int, job_id: str | None) -> None:
        """`job_id`: None where the log has expired before, on purpose."""
        job, events = self._plan.job(number), self._scene.progress.delivered[number]
        log = None if job_id is None else self.state.logs.pop(job_id)
        lasted_s = None if job_id is None else self.state.lasted.pop(job_id, None)
        answer = null_answer(job)
        self.found += check_job(JobRecord(job, events, log, answer, lasted_s=lasted_s))
        self._scene.progress.settle(number, summarize(events, log or []))

    def _expire(self, ids: Mapping[int, str]) -> None:
        """Let the time to live of their keys pass. Each must have one.

        Raises: redis.RedisError
        """
        self._look_again()
        for number, job_id in ids.items():
            partition = Partition(QUEUE, partition_of(job_id))
            keys = [partition.state(job_id), partition.tokens(job_id)]
            if (key := self._plan.job(number).request.idempotency_key) is not None:
                keys.append(partition.idempotency(key))
            pipeline = self._scene.topology.client_of(partition).pipeline(transaction=False)
            for name in keys:
                pipeline.pttl(name)
                pipeline.pexpire(name, 1)
            for name, ttl_ms in zip(keys, pipeline.execute()[::2], strict=True):
                if ttl_ms < 0:
                    why = "is gone" if ttl_ms == GONE else "has no time to live"
                    self.found.append(Finding(Invariant.EXPIRY, f"{name} {why}", number))
            self._expired[number] = keys

    def _look_again(self) -> None:
        """Those that have expired before must be gone."""
        for number, keys in self._expired.items():
            partition = Partition(QUEUE, partition_of(self._scene.progress.submitted[number]))
            if self._scene.topology.client_of(partition).exists(*keys):
                detail = f"{keys} are there after they have expired"
                self.found.append(Finding(Invariant.EXPIRY, detail, number))
        self._expired.clear()
