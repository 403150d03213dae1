"""Fills free slots with new jobs and with jobs of workers that died or drained.

Each partition has its own intake. An intake never asks for more jobs than there are free slots, and
reserves those slots while it asks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field

from rose.errors import RoseError
from rose.protocol import Partition, decode_job
from rose.protocol.calls import Take
from rose.transport import BROKER_ERRORS, WORKER, Outage
from rose_worker.admission import Admission
from rose_worker.broker import Broker, Entry
from rose_worker.jobs import Claim, JobTable
from rose_worker.metrics import Metrics
from rose_worker.settings import WorkerSettings

log = logging.getLogger("rose.intake")

#: Every idle worker hears of a new job, and one of them gets it. The others pause up to this long
#: before they listen again, so that a hundred idle workers do not keep Redis busy.
_MAX_MISSED_PAUSE_S = 0.01


@dataclass(slots=True, eq=False)
class Intake:
    _settings: WorkerSettings
    _partition: Partition
    _broker: Broker
    _table: JobTable
    _admission: Admission
    _metrics: Metrics
    _draining: bool = field(default=False, init=False)
    _seen: list[bytes] | None = field(default=None, init=False)
    _heard: bool = field(default=False, init=False)
    """It has heard of jobs and has not fetched since."""
    _reclaim_due: float = field(default=0.0, init=False)
    _reclaim_from: dict[str, str] = field(default_factory=dict, init=False)

    def drain(self) -> None:
        """Take nothing new. `run` returns when the current step is done."""
        self._draining = True

    async def run(self) -> None:
        outage = Outage(WORKER)
        while not self._draining:
            try:
                await self._fill()
                outage.end()
            except BROKER_ERRORS as error:
                self._metrics.redis_errors["intake"].inc()
                log.warning("intake waits for Redis: %s", error)
                if str(error).startswith("NOGROUP"):
                    await self._recreate_groups()
                await asyncio.sleep(outage.next_pause_s(error))

    async def _fill(self) -> None:
        """Do the next step. If Redis fails in the middle of it, the next call continues there."""
        await self._reclaim_if_due()
        claims = self._table.claims_of(self._partition)
        fresh = [claim for claim in claims if not claim.suspect]
        if fresh:
            await self._admission.begin(self._partition, fresh)
        elif self._table.replays_a_suspect:
            # The suspect may kill this worker, which would charge every job that began now.
            await self._wait_for_change()
        elif claims:
            await self._admission.begin_alone(self._partition, claims[0])
        elif self._table.free_slots == 0:
            await self._wait_for_change()
        elif self._seen is not None:
            await self._listen(self._seen)
        else:
            await self._fetch()

    async def _fetch(self) -> None:
        heard, self._heard = self._heard, False
        with self._table.reserve(self._table.free_slots) as count:
            fetched = await self._broker.fetch(self._partition, count)
            self._table.claim(fetched.entries)
        if heard and not fetched.entries:
            await _let_others()
        # Fewer than asked for: there are no more, so listen for new ones.
        self._seen = fetched.seen if len(fetched.entries) < count else None

    async def _listen(self, seen: list[bytes]) -> None:
        self._seen = None
        heard = await self._broker.listen(self._partition, seen)
        self._heard = bool(heard)
        table = self._table
        ready = table.free_slots and not table.replays_a_suspect and not self._draining
        if len(heard) == 1 and ready:
            await self._take_the_only_one(heard[0], seen)

    async def _take_the_only_one(self, entry: Entry, seen: list[bytes]) -> None:
        """Take the only job that waits in any stream, in one call, since none is more urgent."""
        try:
            spec = decode_job(entry.raw or b"")
        except RoseError:  # the next fetch reads it, and admission gives it up
            return
        claim = Claim(entry, spec)
        take = Take(entry.key, spec.id, claim.take_id)
        with self._table.reserve(1):
            try:
                read, claim.grant = await self._broker.take_unread(self._partition, take)
            except BROKER_ERRORS:
                # The call may have taken it. Admission asks again with the same take id: it is
                # granted then as in the lost reply, or the entry is not ours.
                self._table.hold(claim)
                raise
            if claim.grant is not None:
                self._table.hold(claim)
            elif read is not None:
                self._table.claim([read])
        if read is None:
            await _let_others()
        self._heard = False
        last = (read or entry).key.id.encode()
        places = zip(self._partition.all_jobs, seen, strict=True)
        self._seen = [last if stream == entry.key.stream else place for stream, place in places]

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(self._settings.reclaim_interval_s):
                await self._table.changed()
        except TimeoutError:
            return

    async def _reclaim_if_due(self) -> None:
        """Take over jobs of lost workers. They go before new ones: they have waited a lease."""
        now = time.monotonic()
        if now < self._reclaim_due:
            return
        for stream in self._partition.all_jobs:
            if self._table.free_slots == 0:
                return  # it stays due until there is a slot
            start = self._reclaim_from.get(stream, "0-0")
            with self._table.reserve(self._table.free_slots) as count:
                self._reclaim_from[stream], entries = await self._broker.reclaim(
                    self._partition, stream, self._settings.lease_s, start, count
                )
                self._table.claim(entries)
            self._metrics.redelivered.inc(len(entries))
        self._reclaim_due = now + self._settings.reclaim_interval_s

    async def _recreate_groups(self) -> None:
        try:
            await self._broker.create_groups(self._partition)
        except BROKER_ERRORS as error:
            log.warning("intake cannot create the consumer groups: %s", error)


async def _let_others() -> None:
    await asyncio.sleep(random.uniform(0, _MAX_MISSED_PAUSE_S))  # noqa: S311 - jitter, no secret
