"""How long a job may wait: for another worker after its own was lost, and for its turn.

Only the time counts in which some worker could have worked: one that serves, that nothing befalls,
and that has a core. The faults overlap, and a job is owed nothing while every worker is dead or cut
off.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from rose.protocol import Partition, Priority, partition_of
from tests.chaos.context import AGEING_S, QUEUE, STALL_S
from tests.chaos.evidence import Evidence, Stretch, Take, added_s, moves
from tests.chaos.managed_process import End, Life
from tests.chaos.spans import Span, Spans
from tests.chaos.trouble import Trouble

_LEVELS = [priority.value for priority in Priority]
#: Two workers fetch and begin at about the same time.
_SIMULTANEOUS_S = 1.0
#: From the start of a worker's engine until it takes jobs.
_START_S = 0.5
#: From the time at which a worker could have worked until something of it has been delivered: it
#: finds out that the one that listened is dead, and begins.
_HEARD_S = 1.5
#: Who must have a core, too, for anything to be submitted and delivered.
_CLIENTS = ("producer", "subscriber")
_LOST = (End.KILLED, End.POISONED, End.ITSELF)
#: What the injector calls it.
_HUNG_STEP = "hung step"


@dataclass(frozen=True, slots=True)
class Wait:
    job_id: str
    since: float
    seconds: float
    """in which a worker could have had it"""
    why: str


class Bounds:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._lives = evidence.life_of
        self._well: dict[tuple[str | None, int], Spans] = {}

    @cached_property
    def takeovers(self) -> list[Wait]:
        """Each job that went on elsewhere after its worker was lost. A worker that hung before its
        engine began on the job had it, too, and is the next one to be lost."""
        had = sorted([*self._evidence.takes, *self._evidence.given], key=lambda take: take.at)
        return [
            Wait(
                next_one.job_id,
                lost_at,
                self._could(next_one, self._lives[one.life].process, lost_at),
                f"{one.life} was lost, {next_one.life} went on",
            )
            for one, next_one in moves(had)
            if one.life != next_one.life
            and (lost_at := self._lost_at(self._lives[one.life], one.at, next_one.at)) is not None
            and not self._evidence.made_room(one, lost_at)
        ]

    def owed_s(self, stretch: Stretch) -> float:
        """For how much of it events are owed in each of its partitions. What is measured is the
        fault's doing, so the fault itself is no excuse."""
        partitions = stretch.partitions
        if partitions is None:
            partitions = frozenset(range(self._evidence.plan.partitions))
        waited = Spans(
            (span.began, span.ended)
            for span in self._evidence.starved
            if span.process is not None and span.process.startswith(_CLIENTS)
        )
        seconds = min(
            (self._well_times(None, index, but=stretch.what) - waited).within(
                stretch.began, stretch.began + stretch.seconds
            )
            for index in partitions
        )
        return max(0.0, seconds - _HEARD_S)

    @cached_property
    def behind(self) -> list[Wait]:
        """Each job that began after one that it should have been before."""
        return [wait for order in self._orders for wait in self._behind(order)]

    @property
    def _orders(self) -> Iterator[Mapping[str, float]]:
        """When each job came, by the order of the queue: of the jobs without a tenant in a
        partition, and of each tenant in it; those that pass between tenants apart."""
        redis, passing = self._evidence.redis, self._evidence.passing
        orders = defaultdict[tuple[int, str, bool], dict[str, float]](dict)
        numbers = {job_id: number for number, job_id in self._evidence.submitted}
        for job_id, entry in redis.entries.items():
            index = partition_of(job_id)
            level = Partition(QUEUE, index).all_jobs.index(entry.stream)
            orders[index, "", job_id in passing][job_id] = added_s(entry) + AGEING_S * level
        for job_id in redis.tenants.keys() & numbers.keys():
            job = redis.tenants[job_id]
            level = _LEVELS.index(self._evidence.job(numbers[job_id]).priority)
            order = orders[job.partition, job.tenant, job_id in passing]
            order[job_id] = job.came / 1000 + AGEING_S * level
        yield from orders.values()

    def _behind(self, order: Mapping[str, float]) -> Iterator[Wait]:
        first: dict[str, Take] = {}
        for take in self._evidence.takes:
            if take.job_id in order:
                first.setdefault(take.job_id, take)
        due = {job_id: at for job_id, at in order.items() if job_id in first}
        # From the last in the queue's order to the first: when the earliest of those behind began.
        began: list[tuple[float, Take]] = []
        overtaker: Take | None = None
        for job_id in sorted(due, key=lambda job_id: -due[job_id]):
            while began and began[0][0] > due[job_id] + _SIMULTANEOUS_S:
                take = began.pop(0)[1]
                overtaker = min(overtaker or take, take, key=lambda take: take.at)
            began.append((due[job_id], first[job_id]))
            if overtaker is not None and overtaker.at < first[job_id].at:
                seconds = self._could(first[job_id], None, overtaker.at)
                yield Wait(job_id, overtaker.at, seconds, f"{overtaker.job_id} went before it")

    def _lost_at(self, life: Life, after: float, before: float) -> float | None:
        """When the worker's jobs were left alone between two times; None: they were not."""
        times = [began for began, _ in life.stopped]
        if life.end in _LOST and life.ended is not None:
            times.append(life.ended)
        times += [
            trouble.began + STALL_S
            for trouble in self._hung_steps
            if trouble.process == life.process
        ]
        times = [at for at in times if after <= at <= before]
        return min(times, default=None)

    @cached_property
    def _hung_steps(self) -> list[Trouble]:
        return [trouble for trouble in self._evidence.troubles if trouble.what == _HUNG_STEP]

    def _could(self, take: Take, without: str | None, since: float) -> float:
        key = without, partition_of(take.job_id)
        if key not in self._well:
            self._well[key] = self._well_times(*key)
        return self._well[key].within(since, take.at)

    def _well_times(self, without: str | None, partition: int, but: str = "") -> Spans:
        """When some worker could have worked, whatever was the matter `but` for this."""
        well: list[Span] = []
        bad: dict[str, Spans] = {}
        for life in self._evidence.lives:
            began = self._evidence.serving.get(life.name)
            if began is None or life.process == without:
                continue
            if life.process not in bad:
                bad[life.process] = self._bad_times(life.process, partition, but)
            ended = min(life.ended or float("inf"), life.told_at or float("inf"))
            well += (Spans([(began + _START_S, ended)]) - bad[life.process]).spans
        return Spans(well)

    def _bad_times(self, process: str, partition: int, but: str) -> Spans:
        """When something befell a process, in any of its lives."""
        lives = [life for life in self._evidence.lives if life.process == process]
        stopped = (span for life in lives for span in life.stopped)
        troubles = (
            (trouble.began, trouble.ended)
            for trouble in chain(self._evidence.troubles, self._evidence.starved)
            if trouble.concerns(process, partition) and trouble.what != but
        )
        return Spans([*stopped, *troubles])
