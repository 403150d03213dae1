"""From Redis into free slots: new jobs, and jobs of workers that died or drained.

The only task that fills slots, so it alone counts them: it never asks for more than are free.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence

from redis.exceptions import RedisError, ResponseError

from protocol import Partition, readable_job_id
from worker.admission import Admission
from worker.broker import Broker, Entry
from worker.jobs import JobTable
from worker.metrics import Metrics
from worker.settings import WorkerSettings

log = logging.getLogger("rose.intake")

#: A blocking read returns up to COUNT entries of *each* stream, so with few free slots intake
#: polls instead.
_POLL_S = 0.02
_RETRY_S = 0.5


class Intake:
    def __init__(
        self,
        settings: WorkerSettings,
        broker: Broker,
        table: JobTable,
        admission: Admission,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._table = table
        self._admission = admission
        self._metrics = metrics
        self._draining = False
        self._reclaim_due = 0.0
        self._turn = itertools.count()
        self._reclaim_from: dict[str, str] = {}

    def drain(self) -> None:
        """Take no more; `run` returns once what it is doing is done."""
        self._draining = True

    async def run(self) -> None:
        while not self._draining:
            try:
                await self._fill()
            except ResponseError as error:
                self._metrics.redis_error("intake")
                if str(error).startswith("NOGROUP"):
                    await self._recreate_groups()
                else:
                    log.warning("intake: Redis says: %s", error)
                await asyncio.sleep(_RETRY_S)
            except RedisError as error:
                self._metrics.redis_error("intake")
                log.warning("intake waits for Redis: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def hand_back(self) -> None:
        """Claims that were not begun on: for another worker, at once."""
        claims = self._table.claims
        for partition in self._broker.partitions:
            entries = [claim.entry for claim in claims if claim.entry.partition == partition]
            await self._broker.release(
                partition,
                [(e.stream, readable_job_id(e.raw or b"") or "unreadable", e.id) for e in entries],
            )
        for claim in claims:
            self._table.drop_claim(claim)

    async def _fill(self) -> None:
        """One thing at a time. What Redis' troubles interrupt goes on from where it stood."""
        await self._reclaim_if_due()
        claims = self._table.claims
        fresh = [claim for claim in claims if not claim.suspect]
        if fresh:
            await self._admission.begin(fresh)
        elif self._table.replays_a_suspect:
            # Whoever began now would be charged with the crash that this one may cause.
            await self._wait_for_change()
        elif claims:
            await self._admission.begin(claims[:1], alone=True)
        elif self._table.free_slots == 0:
            await self._wait_for_change()
        else:
            self._table.claim(await self._new_entries())

    async def _new_entries(self) -> Sequence[Entry]:
        free = self._table.free_slots
        entries: list[Entry] = []
        for partition in self._partitions_in_turn():
            if len(entries) < free:
                entries += await self._broker.fetch(partition, free - len(entries))
        if entries:
            return entries
        per_stream = free // self._broker.streams
        if per_stream == 0:
            await asyncio.sleep(_POLL_S)
            return []
        return await self._broker.wait(per_stream)

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(self._settings.reclaim_interval_s):
                await self._table.changed()
        except TimeoutError:
            return

    def _partitions_in_turn(self) -> list[Partition]:
        """All partitions, another one first each time: none is starved by one before it."""
        partitions = self._broker.partitions
        first = next(self._turn) % len(partitions)
        return partitions[first:] + partitions[:first]

    async def _reclaim_if_due(self) -> None:
        """Jobs of lost workers go before new ones: somebody has waited for a lease already."""
        now = time.monotonic()
        if now < self._reclaim_due:
            return
        for partition in self._partitions_in_turn():
            for stream in partition.all_jobs:
                free = self._table.free_slots
                if free == 0:
                    return  # still due: again as soon as there is a slot
                start = self._reclaim_from.get(stream, "0-0")
                self._reclaim_from[stream], entries = await self._broker.reclaim(
                    partition, stream, self._settings.lease_s, start, free
                )
                self._table.claim(entries)
                self._metrics.redelivered(len(entries))
        self._reclaim_due = now + self._settings.reclaim_interval_s

    async def _recreate_groups(self) -> None:
        try:
            await self._broker.create_groups()
        except RedisError as error:
            log.warning("intake cannot create the consumer groups: %s", error)
