"""Calls Redis every few seconds, to check that it answers and to announce that this worker
lives.

It does so for each partition separately. A partition is healthy if it has answered its last
call.

One worker also reads the queue's gauges, which would be the same from any worker, and sweeps. It
holds the key `reader` of the first partition that is well, which is a lease; the others only ask
for that key. So a hundred workers cost Redis forty small calls a second, and one reading of the
queue every 5 s.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rose.errors import MalformedMessage
from rose.protocol import Partition
from rose.protocol.calls import ALIVE_S, Standing
from rose.protocol.tenants import TenantsStatus
from rose.transport import BROKER_ERRORS, is_overwritten
from rose_worker.broker import Broker
from rose_worker.engine import ModelInfo
from rose_worker.jobs import JobTable
from rose_worker.metrics import Metrics
from rose_worker.sweep import Sweep
from rose_worker.tenant_metrics import TOP_TENANTS

log = logging.getLogger("rose.watch")

#: Two calls in a row may fail before a living worker is missing from the queue's status.
_INTERVAL_S = ALIVE_S / 3
#: A partition that does not answer within this is not well. With the interval: `/readyz` says so
#: at most 8 s after a node went silent.
_ANSWER_S = 3.0
#: A worker that is not ready calls more often, so that `/readyz` does not lag.
_RETRY_S = 0.5
#: Another worker follows a killed reader after at most this and an interval.
_LEASE_S = 3 * _INTERVAL_S

_NOT_YET = "Redis has not answered yet"
_FULL = "Redis is out of memory (maxmemory): new jobs are refused, those that are there go on"


@dataclass(slots=True, eq=False)
class Watch:
    _broker: Broker
    _metrics: Metrics
    _model: ModelInfo
    _table: JobTable
    _lacks_vocabulary: Callable[[Partition], None]
    interval_s: float = _INTERVAL_S
    lease_s: float = _LEASE_S
    _problems: dict[Partition, str] = field(default_factory=dict, init=False)
    """of the partitions that are not well"""
    _full: set[Partition] = field(default_factory=set, init=False)
    """those whose Redis takes no new jobs; they are well otherwise, and drain"""
    _one_is_well: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """since the start"""
    _sweep: Sweep = field(init=False)
    _unreadable: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._sweep = Sweep(self._broker)
        self._problems = dict.fromkeys(self._broker.partitions, _NOT_YET)

    def check(self) -> str | None:
        """What keeps this worker from being ready."""
        problems = dict.fromkeys(self._full, _FULL) | self._problems
        if len(self._broker.partitions) == 1:
            return next(iter(problems.values()), self._unreadable)
        lines = [f"partition {p.index}: {problem}" for p, problem in problems.items()]
        return "\n".join(lines) or self._unreadable

    async def run(self) -> None:
        parts = (self._attend(partition) for partition in self._broker.partitions)
        await asyncio.gather(self._read_for_all(), *parts)

    async def _attend(self, partition: Partition) -> None:
        while True:
            problem = await self._ask(partition)
            if problem is None:
                self._problems.pop(partition, None)
                self._one_is_well.set()
            else:
                if self._problems.get(partition, _NOT_YET) == _NOT_YET:
                    log.warning("partition %d is not well: %s", partition.index, problem)
                self._problems[partition] = problem
            self._metrics.ready.set(self.check() is None)
            await asyncio.sleep(self._pause_s(well=problem is None))

    async def _ask(self, partition: Partition) -> str | None:
        """What is wrong with a partition."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                announced = await self._broker.announce(partition, self._model, "keep")
                self._note_room(partition, full=await self._broker.queue.is_full(partition))
        except TimeoutError:
            self._metrics.redis_errors["watch"].inc()
            return f"Redis: no answer within {_ANSWER_S:g} s"
        except (*BROKER_ERRORS, MalformedMessage) as error:
            self._metrics.redis_errors["watch"].inc()
            if is_overwritten(error):
                return await self._make_anew(partition, error)
            return f"Redis: {error}"
        replaced = announced.standing is Standing.REPLACED
        self._table.close(partition, closed=replaced)
        if announced.lacks_vocabulary and partition not in self._full:
            self._lacks_vocabulary(partition)
        if replaced:
            return f"the queue serves {announced.model} now: this worker takes no new jobs, stop it"
        return None

    async def _make_anew(self, partition: Partition, error: Exception) -> str:
        """What was wrong; the next call sees whether it is well again."""
        try:
            await self._broker.create_groups(partition)
        except BROKER_ERRORS as second:
            return f"Redis: {second}"
        return f"Redis: {error}"

    def _note_room(self, partition: Partition, *, full: bool) -> None:
        if full and partition not in self._full:
            log.warning("partition %d: %s", partition.index, _FULL)
            self._full.add(partition)
        elif not full:
            self._full.discard(partition)
        self._metrics.redis_full.set(bool(self._full))

    async def _read_for_all(self) -> None:
        await self._one_is_well.wait()
        while True:
            well = [p for p in self._broker.partitions if p not in self._problems]
            try:
                if well and await self._broker.queue.elect(well[0], self.lease_s):
                    await self._read(well)
                else:
                    self._metrics.forget_queue()
                self._unreadable = None
            except (*BROKER_ERRORS, MalformedMessage) as error:
                self._metrics.redis_errors["watch"].inc()
                self._metrics.forget_queue()
                self._unreadable = f"Redis: {error}"
            self._metrics.ready.set(self.check() is None)
            await asyncio.sleep(self._pause_s(well=bool(well) and self._unreadable is None))

    async def _read(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:  # what only producers write is seen here first
            await self._broker.create_groups(partition)
        status = await self._broker.queue.status(partitions)
        tenants = TenantsStatus((), 0, 0, 0, status.now_ms)
        if status.tenants_have_jobs:
            tenants = await self._broker.queue.tenants(partitions, TOP_TENANTS)
        oldest_ms = await self._broker.queue.oldest_waiting_ms(partitions)
        lost = await self._broker.queue.lost_workers(partitions[0])
        self._metrics.observe_queue(status, tenants, oldest_ms, lost)
        await self._broker.queue.forget_dead_consumers(partitions)
        for partition in partitions:
            await self._sweep.run(partition)
        await self._list_queue()

    async def _list_queue(self) -> None:
        """Only `rose status --all` needs it, and it may be on another node than the queue."""
        try:
            await self._broker.queue.list_queue(len(self._broker.partitions))
        except BROKER_ERRORS as error:
            log.debug("the queue is not listed: %s", error)

    def _pause_s(self, *, well: bool) -> float:
        return self.interval_s if well else min(_RETRY_S, self.interval_s)
