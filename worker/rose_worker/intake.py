"""Fills free slots with new jobs and with jobs of workers that died or drained.

Each partition has its own intake. An intake never asks for more jobs than its share of the free
slots, and reserves those slots while it asks. While a step takes longer than a lease it asks for
none. With hand-backs it also asks where all slots are taken, for a job that gets one of them.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rose.errors import RoseError
from rose.protocol import EntryKey, Partition, decode_job
from rose.protocol.calls import Take, new_take_id
from rose.transport import BROKER_ERRORS, WORKER, Outage, is_overwritten
from rose_worker.admission import Admission
from rose_worker.broker import LISTEN_S, Broker, DueBefore, Turn
from rose_worker.engine import EngineThread
from rose_worker.hand_backs import HandBacks
from rose_worker.jobs import Claim, Entry, Fetched, JobTable
from rose_worker.metrics import Metrics
from rose_worker.publisher import Publisher
from rose_worker.settings import WorkerSettings
from rose_worker.tasks import cancel_all

log = logging.getLogger("rose.intake")

#: Whoever listens and takes longer to start what it was notified of lets another one listen.
_MAX_DEAF_S = 0.005

#: Jobs of one fetch. While this worker starts them Redis can serve its appends: with a large
#: batch in one call each of the two would wait for the other.
_MAX_FETCHED = 128

#: How often a worker whose slots are all taken looks for urgent jobs while another one listens.
_LOOK_S = 1.0

#: How long jobs that are notified one by one may keep intake from a fetch, which also tells the
#: other idle workers that this one listens.
_MAX_UNFETCHED_S = 0.5


@dataclass(slots=True, eq=False)
class Intake:
    _settings: WorkerSettings
    _partition: Partition
    _broker: Broker
    _thread: EngineThread
    _table: JobTable
    _admission: Admission
    _publisher: Publisher
    _metrics: Metrics
    _hand_backs: HandBacks
    _draining: bool = field(default=False, init=False)
    _seen: list[bytes] | None = field(default=None, init=False)
    _waits: bool = field(default=False, init=False)
    """Another idle worker of the partition listens for new jobs; this one waits for its turn."""
    _turn_came: bool = field(default=False, init=False)
    """It is this worker's turn to listen, or it listens: it must hand on if it does neither."""
    _aside_due: float = field(default=float("inf"), init=False)
    """when any worker may take a job that stands aside for another"""
    _urgent_due: float = field(default=0.0, init=False)
    """when to ask for a job that gets the slot of another"""
    _urgent_levels: int = field(default=0, init=False)
    """how many priorities such a job may have, by the last answer"""
    _listening: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _fetch_due: float = field(default=0.0, init=False)
    _handing_on: asyncio.Task[None] | None = field(default=None, init=False)
    _hung: bool = field(default=False, init=False)
    _adopting: bool = field(default=False, init=False)
    """A lost reply may have contained entries that this worker does not know of."""
    _adopt_until: float = field(default=0.0, init=False)
    _lost_take: str | None = field(default=None, init=False)
    """of the fetch whose reply was lost, if one was"""
    _adopted: set[EntryKey] = field(default_factory=set, init=False)
    """entries that were claimed with it: it stands for one take of each"""
    _reclaim_due: float = field(default=0.0, init=False)

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
                self._adopt_from_now_on()
                log.warning("intake waits for Redis: %s", error)
                if is_overwritten(error):
                    await self._recreate_groups()
                await asyncio.sleep(outage.next_pause_s(error))
        await cancel_all([*self._listening])
        await self._handed_on()
        await self._hand_on()

    async def _fill(self) -> None:
        """Do the next step. If Redis fails in the middle of it, the next call continues there."""
        if not self._waits:  # whoever listens looks
            await self._reclaim_if_due()
        claims = self._table.claims_of(self._partition)
        if self._hangs:
            await self._leave_to_others(claims)
            return
        self._hung = False
        claims = [claim for claim in claims if not claim.preparing]
        fresh = [claim for claim in claims if not claim.suspect]
        if fresh:
            await self._begin(self._admission.begin(self._partition, fresh))
        elif self._table.replays_a_suspect:
            # The suspect may kill this worker, which would charge every job that began now.
            await self._wait_for_change()
        elif claims:
            await self._begin(self._admission.begin_alone(self._partition, claims[0]))
        elif self._table.share(self._partition) == 0:
            if not await self._made_room():
                await self._wait_for_change()
        elif self._seen is not None:
            await self._listen(self._seen)
        elif self._waits:
            await self._wait_for_turn()
        else:
            await self._fetch()

    async def _begin(self, admission: Coroutine[Any, Any, None]) -> None:
        timer = asyncio.get_running_loop().call_later(_MAX_DEAF_S, self._hand_on_beside)
        try:
            await admission
        finally:
            timer.cancel()
            await self._handed_on()

    async def _fetch(self, *, wait: bool = False) -> None:
        """`wait`: nothing, where another worker listens."""
        share = min(self._table.share(self._partition), _MAX_FETCHED)
        with self._table.reserve(self._partition, share) as count:
            fetched = await self._fetched(count, wait=wait)
        now = time.monotonic()
        self._fetch_due = now + _MAX_UNFETCHED_S
        self._aside_due = float("inf") if fetched.due_s is None else now + fetched.due_s
        if self._adopting and time.monotonic() >= self._adopt_until:
            self._adopting, self._lost_take = False, None
            self._adopted.clear()
        self._turn_came = fetched.listens
        self._seen = fetched.seen if fetched.listens and not fetched.more else None
        self._waits = not fetched.listens and not fetched.more

    async def _fetched(
        self, count: int, *, wait: bool = False, due_before: DueBefore | None = None
    ) -> Fetched:
        """What has become claims."""
        fetch = partial(self._broker.fetch, self._partition, count, due_before=due_before)
        if self._adopting:
            fetched = await fetch(adopt=self._known_entries())
        else:
            # While the reply is due it counts as lost, so that the next fetch knows the id.
            take_id = self._lost_take = new_take_id()
            fetched = await fetch(wait=wait, take_id=take_id)
            self._lost_take = None
        self._table.claim(map(partial(self._claim, fetched), fetched.entries))
        self._metrics.redelivered.inc(fetched.redelivered)
        return fetched

    async def _made_room(self) -> bool:
        """All slots are taken. Whether a job was fetched that gets one of them."""
        due_before = await self._hand_backs.due_before()
        if due_before is None:
            return False
        levels = sum(map(any, zip(due_before[:2], due_before[2:], strict=True)))
        if levels <= self._urgent_levels and time.monotonic() < self._urgent_due:
            return False
        with self._table.reserve(self._partition, 1):  # one that becomes free meanwhile is for it
            fetched = await self._fetched(1, due_before=due_before)
        for entry in fetched.entries:
            self._hand_backs.make_room(entry)
        if fetched.entries:
            return True
        self._urgent_levels = levels
        self._urgent_due = time.monotonic() + _LOOK_S
        if fetched.listens:
            listens = self._listen_for_urgent(fetched.seen, due_before)
            self._listening.add(task := asyncio.create_task(listens))
            task.add_done_callback(self._listening.discard)
        return False

    async def _listen_for_urgent(self, seen: list[bytes], due_before: DueBefore) -> None:
        try:
            await self._broker.listen_for_urgent(self._partition, seen, due_before)
        except BROKER_ERRORS as error:
            log.debug("urgent jobs are noticed a little later: %s", error)
            return
        self._urgent_due = 0.0
        self._table.changed()

    def _claim(self, fetched: Fetched, entry: Entry) -> Claim:
        """One that the lost fetch has started is taken as in the reply that was lost."""
        claim = Claim(entry, taken=fetched.begun.get(entry.key))
        if claim.taken is None and self._lost_take and entry.key not in self._adopted:
            self._adopted.add(entry.key)
            claim.take_id = self._lost_take
        return claim

    async def _wait_for_turn(self) -> None:
        turn = await self._broker.wait_for_turn(self._partition)
        self._turn_came = turn is Turn.LISTENS
        if turn is not Turn.NONE or not await self._broker.somebody_listens(self._partition):
            self._waits = False
            await self._fetch(wait=not self._turn_came)

    async def _hand_on(self) -> None:
        """Let the next idle worker listen, if it was this one's turn."""
        if not self._turn_came:
            return
        self._turn_came, self._seen = False, None
        try:
            await self._broker.hand_on(self._partition)
        except BROKER_ERRORS as error:
            log.warning("another worker listens in a second only: %s", error)

    def _hand_on_beside(self) -> None:
        if self._handing_on is None or self._handing_on.done():
            self._handing_on = asyncio.create_task(self._hand_on())

    async def _handed_on(self) -> None:
        if self._handing_on is not None:
            await self._handing_on

    def _adopt_from_now_on(self) -> None:
        """A call whose reply was lost may have read entries. It may even run later, if Redis is
        blocked: so look for such entries for a while."""
        self._seen, self._waits, self._turn_came = None, False, False  # fetch
        self._adopting = True
        self._adopt_until = time.monotonic() + self._settings.redis_timeout_s

    def _known_entries(self) -> list[EntryKey]:
        held = [job.entry for job in self._table.entries_of(self._partition)]
        return held + self._publisher.entries_of(self._partition)

    async def _listen(self, seen: list[bytes]) -> None:
        self._seen = None
        longest_s = min(LISTEN_S, self._aside_due - time.monotonic())
        heard = await self._broker.listen(self._partition, seen, longest_s)
        table = self._table
        # A fetch takes the jobs of lost workers before new ones, so it comes now and then, and for
        # the last slot.
        ready = (
            table.share(self._partition) > 1
            and time.monotonic() < self._fetch_due
            and not (table.replays_a_suspect or self._draining or self._hangs)
        )
        if len(heard) == 1 and ready and heard[0].key.stream != self._partition.wakeup:
            await self._take_the_only_one(heard[0], seen)

    async def _take_the_only_one(self, entry: Entry, seen: list[bytes]) -> None:
        """Take the only waiting job of all streams in one call: none is more urgent."""
        try:
            spec = decode_job(entry.raw or b"")
        except RoseError:  # the next fetch reads it, and admission gives it up
            return
        claim = Claim(entry, spec)
        take = Take(entry.key, spec.id, claim.take_id)
        with self._table.reserve(self._partition, 1):
            try:
                read, claim.taken, others = await self._broker.take_unread(self._partition, take)
            except BROKER_ERRORS:
                # The call may have taken it. Admission asks again with the same take id: it is
                # taken then as in the lost reply, or the entry is not ours.
                self._table.hold(claim)
                raise
            if claim.taken is not None:
                claim.logged = claim.taken.logged
                self._table.hold(claim)
            elif read is not None:
                self._table.claim([Claim(read)])
        if others:
            self._waits, self._turn_came = True, False
        elif read is not None:
            last = read.key.id.encode()
            names = (*self._partition.all_streams, self._partition.wakeup)
            places = zip(names, seen, strict=True)
            self._seen = [last if name == entry.key.stream else place for name, place in places]

    @property
    def _hangs(self) -> bool:
        """Whether a step takes so long that this worker may never finish it."""
        settings = self._settings
        return self._thread.stalled_s > min(settings.lease_s, settings.stall_timeout_s)

    async def _leave_to_others(self, claims: Sequence[Claim]) -> None:
        """Hand back what has not started, and take nothing new until the step is done."""
        if not self._hung:
            self._hung = True
            log.warning(
                "a step has taken %.0f s: no new jobs until it ends", self._thread.stalled_s
            )
        if claims:
            await self._broker.release(self._partition, [claim.job_entry for claim in claims])
            for claim in claims:
                self._table.drop_claim(claim)
        await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        change = self._table.next_change
        await self._hand_on()
        if change.is_set():  # meanwhile
            return
        try:
            with self._table.waiting(self._partition) as turn:
                async with asyncio.timeout(self._settings.reclaim_interval_s):
                    await turn.wait()
        except TimeoutError:
            return

    async def _reclaim_if_due(self) -> None:
        """Release the jobs of lost workers, whether or not this worker has slots for them."""
        now = time.monotonic()
        if now < self._reclaim_due:
            return
        interval_s = self._settings.reclaim_interval_s
        released = await self._broker.reclaim(
            self._partition, lease_s=self._settings.lease_s, interval_s=interval_s
        )
        self._reclaim_due = now + interval_s
        if released:
            log.info("%d leases have lapsed", released)
            self._seen = None  # fetch, which takes them before new jobs

    async def _recreate_groups(self) -> None:
        try:
            await self._broker.create_groups(self._partition)
        except BROKER_ERRORS as error:
            log.warning("intake cannot create the consumer groups: %s", error)
