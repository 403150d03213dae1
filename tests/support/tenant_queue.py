"""A queue with tenants, played call by call, beside a plain Python account of what must be true."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from rose.protocol import (
    CancelledEvent,
    EntryKey,
    FailedEvent,
    FinishedEvent,
    JobEntry,
    JobSpec,
    Partition,
    Priority,
    calls,
    decode_job,
    encode_job,
)
from rose.protocol.calls import (
    Append,
    Lease,
    NotTaken,
    QueueLimits,
    Submission,
    Take,
    Taken,
    new_take_id,
)
from rose.protocol.codec import encode_tokens
from rose.protocol.events import Event
from rose.protocol.tenants import PASSES, TenantLimits, encode_passing
from rose.sampling import SamplingParams
from rose.transport import RedisClient
from tests.support.virtual_times import VirtualTimes

_TTL_S = 60
#: No test takes so long: a job of another priority is never due before it.
_AGEING_MS = 3_600_000
#: Tokens of an event: some answers get longer than what was charged for them.
_SAID = 40
_LEVELS = list(Priority)


@dataclass(slots=True)
class Played:
    """A job, as it must be."""

    job_id: str
    tenant: str
    level: int
    number: int
    """in the order of submits"""
    prompt: int
    """tokens, estimated"""
    status: str = "waiting"
    """waiting, given, ended"""
    lease: Lease | None = None
    """of whoever works on it; None: nobody does"""
    said: int = 0


@dataclass(slots=True)
class TenantQueue:
    redis: RedisClient
    partition: Partition
    passing: tuple[int, ...] = ()
    """levels of the jobs that go before all others"""
    limits: dict[str, TenantLimits] = field(default_factory=dict)
    jobs: dict[str, Played] = field(default_factory=dict)
    times: VirtualTimes = field(default_factory=VirtualTimes)
    _owners: dict[str, str] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def begin(self) -> None:
        """A worker says that it lives: jobs of tenants are parked for it. It is not heard of again,
        and a test takes less than the minute for which that holds."""
        self.redis.run(calls.create_groups(self.partition))
        facts = {"name": "null", "fingerprint": ""}
        self.redis.run(calls.announce(self.partition, "w1", facts, mode="join", slots=4))
        text = encode_passing([_LEVELS[level] for level in self.passing])
        self.redis.execute("HSET", self.partition.tenant_limits, PASSES, text)

    def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        self.limits[tenant] = limits
        self.times.tenant(tenant).weight = limits.weight
        self.redis.run(calls.set_tenant(self.partition, tenant, limits))
        self._place(tenant)

    def submit(self, tenant: str, level: int, new_tokens: int) -> Played:
        number = next(self._numbers)
        sampling = SamplingParams(max_new_tokens=new_tokens)
        spec = JobSpec(id=f"0-{number}", prompt="abc", sampling=sampling)
        item = Submission.of(spec, encode_job(spec), _LEVELS[level], tenant=tenant)
        assert self.redis.run(calls.submit(self.partition, [item], limits=QueueLimits())) == []
        job = Played(spec.id, tenant, level, number, item.cost - new_tokens)
        self.jobs[spec.id] = job
        self._place(tenant)
        return job

    def fetch(self, worker: str, most: int) -> list[Played]:
        """And take: as many as there are, or this worker's part of them while another one waits for
        its turn; the right ones of each tenant."""
        loose = [job for job in self.jobs.values() if job.status == "given" and job.lease is None]
        due = min(most, len(loose) + self.eligible)
        is_shared = bool(self.redis.execute("EXISTS", self.partition.waiting))
        take_id = new_take_id()
        fetched = self._entries(worker, most, take_id=take_id)
        assert len(fetched) == due or (is_shared and fetched), "not all slots are used"
        begun = [self._take(worker, entry, take_id) for entry in fetched]
        assert len({job.job_id for job in begun}) == len(fetched) <= due, "a job was given twice"
        return begun

    def lose_reply(self, worker: str, most: int) -> None:
        """The worker fetches and does not hear of it: it asks again."""
        take_id = new_take_id()
        before = self._entries(worker, most, take_id=take_id)
        known = [job.lease.entry for job in self.running if job.lease]
        again = self._entries(worker, len(before), adopt=known) if before else []
        assert sorted(again) == sorted(before)
        for entry in before:
            self._take(worker, entry, take_id)

    def say(self, job: Played) -> None:
        assert job.lease is not None
        event = encode_tokens(job.said, (1,) * _SAID, "x")
        assert self._publish(Append(job.lease, job.said, [_SAID], [event])) == "OK"
        job.said += _SAID
        if job.tenant:
            self.times.log(job.tenant, job.job_id, job.said)

    def finish(self, job: Played) -> None:
        self._end(job, FinishedEvent(index=job.said, reason="eos", prompt_tokens=1))

    def fail(self, job: Played) -> None:
        self._end(job, FailedEvent(index=job.said, code="x", message="as the test wishes"))

    def cancel(self, job: Played) -> None:
        """One that runs is ended by its worker."""
        outcome = self.redis.run(calls.cancel(self.partition, job.job_id))
        if outcome == b"CANCELLED":
            job.status = "ended"
            self._place(job.tenant)
        elif job.lease is not None:
            self._end(job, CancelledEvent(index=job.said))

    def hand_back(self, job: Played) -> None:
        assert job.lease is not None
        entry, owner = job.lease.entry, self._owner(job)
        item = JobEntry(entry, job.job_id)
        assert self.redis.run(calls.release(self.partition, entry.stream, owner, [item])) == 1
        job.lease = None

    def lapse(self) -> None:
        """All workers are silent: their jobs are anybody's."""
        held = [job for job in self.jobs.values() if job.lease is not None]
        call = calls.reclaim(self.partition, lease_ms=0, interval_ms=0, patience_ms=0)
        self.redis.run(call)
        for job in held:
            job.lease = None

    @property
    def running(self) -> list[Played]:
        return [job for job in self.jobs.values() if job.lease is not None]

    @property
    def unended(self) -> list[Played]:
        return [job for job in self.jobs.values() if job.status != "ended"]

    @property
    def eligible(self) -> int:
        """Jobs that may begin."""
        return sum(
            min(len(self.waiting(name)), self._room(name))
            for name in {job.tenant for job in self.unended}
        )

    def waiting(self, tenant: str) -> list[Played]:
        """In their order."""
        own = [j for j in self.jobs.values() if j.tenant == tenant and j.status == "waiting"]
        return sorted(own, key=lambda job: (not self._passes(job), job.level, job.number))

    def given(self, tenant: str) -> int:
        return sum(j.tenant == tenant and j.status == "given" for j in self.jobs.values())

    def _room(self, tenant: str) -> int:
        most = self.limits.get(tenant, TenantLimits()).max_running_jobs
        return len(self.jobs) if most is None else max(0, most - self.given(tenant))

    def _entries(
        self, worker: str, most: int, *, adopt: list[EntryKey] | None = None, take_id: str = ""
    ) -> list[JobEntry]:
        call = calls.fetch(
            self.partition, worker, most, ageing_ms=_AGEING_MS, adopt=adopt, take_id=take_id
        )
        return [
            JobEntry(EntryKey(stream.decode(), entry.decode()), decode_job(raw).id)
            for stream, flat in self.redis.run(call)[0]
            for entry, raw in zip(flat[::2], flat[1::2], strict=True)
        ]

    def _take(self, worker: str, entry: JobEntry, take_id: str) -> Played:
        """Fetch has begun on it already, if it is new: then this take is a repeat."""
        job = self.jobs[entry.job_id]
        if job.status == "waiting":
            assert job == self.waiting(job.tenant)[0], "another one of its tenant was first"
            assert self._room(job.tenant) > 0, "its tenant has as many as it may"
            self._give(job)
        call = calls.take(
            self.partition, [Take(*entry, take_id)], worker, ttl_s=_TTL_S, mode="alone"
        )
        (reply,) = self.redis.run(call)
        taken = calls.taken(reply, take_id)
        assert isinstance(taken, Taken), taken if isinstance(taken, NotTaken) else reply
        assert taken.logged == job.said
        job.lease = Lease(self.partition, entry.entry, job.job_id, take_id)
        self._owners[job.job_id] = worker
        return job

    def _give(self, job: Played) -> None:
        if not job.tenant:
            job.status = "given"
            return
        # Jobs without a tenant compete, too: how they are counted is not modelled.
        if not any(other.tenant == "" for other in self.jobs.values()):
            urgent = self._urgent()
            if urgent:
                assert job.level == min(urgent), "another job passes this one"
            else:
                assert self.times.may_be_next(job.tenant), "it was another tenant's turn"
        job.status = "given"
        self.times.give(job.tenant, job.job_id, job.prompt, passes=self._passes(job))
        self._place(job.tenant)

    def _passes(self, job: Played) -> bool:
        return job.level in self.passing

    def _urgent(self) -> list[int]:
        """The levels of the jobs that are next of their tenants and pass, and may begin. The job
        that is about to be given still waits."""
        names = {job.tenant for job in self.unended if job.tenant}
        firsts = [self.waiting(name)[0] for name in names if self._may_begin(name)]
        return [job.level for job in firsts if self._passes(job)]

    def _may_begin(self, name: str) -> bool:
        return bool(self.waiting(name)) and self._room(name) > 0

    def _place(self, tenant: str) -> None:
        if tenant:
            self.times.place(tenant, ready=self._may_begin(tenant))

    def _owner(self, job: Played) -> str:
        return self._owners[job.job_id]

    def _end(self, job: Played, event: Event) -> None:
        assert job.lease is not None
        assert self._publish(Append(job.lease, job.said, end=event)) == "OK"
        job.status, job.lease = "ended", None
        if job.tenant:
            self.times.end(job.tenant, job.job_id, job.said)
            self._place(job.tenant)

    def _publish(self, item: Append) -> str:
        reply = self.redis.run(calls.append(self.partition, [item], ttl_s=_TTL_S))
        return calls.outcomes(reply, 1)[0]
