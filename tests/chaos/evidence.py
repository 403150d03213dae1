"""What a run has left behind, for the checks: files of the processes, and Redis as it is now."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import redis

from rose.protocol import GROUP, EntryKey, Partition, decode_event, partition_of
from rose.protocol.keys import QUEUES
from tests.chaos import journal
from tests.chaos.context import WORKERS
from tests.chaos.findings import Finding
from tests.chaos.job_record import Answer, LogEntry, Summary, digest, said, summarize
from tests.chaos.managed_process import Life
from tests.chaos.plan import JobPlan, Plan
from tests.chaos.tenant_check import TenantJob
from tests.chaos.trouble import Trouble, Troubles

_CHUNK = 500
#: Of a job's state.
_PLACE = ("stream", "entry", "ended_ms", "tenant", "enqueued_ms", "tokens", "started_ms")
#: PTTL of a key that has expired just now.
GONE = -2


@dataclass(frozen=True, slots=True)
class Take:
    """A worker's engine begins on a job, at the token after `done`."""

    at: float
    job_id: str
    done: int
    life: str
    """the worker's, as `Life.name`"""


@dataclass(frozen=True, slots=True)
class Raised:
    """A stream ended with an exception, though its job had not."""

    number: int
    at: float
    error: str


@dataclass(frozen=True, slots=True)
class Crowd:
    """What many streams of one job, in one client, were given."""

    number: int
    job_id: str
    streams: int
    given: list[tuple[list[int], str]]
    """tokens and text, each variety once"""
    raised: list[str]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which the queue had to work on, though something was wrong."""

    what: str
    began: float
    seconds: float
    events: int
    """that were delivered in it"""
    per_s: float
    """so many are owed for each second in which somebody could have worked"""
    partitions: frozenset[int] | None = None
    """whose events; None: those of all"""


@dataclass
class RedisState:
    """At the end, when nobody is connected any more."""

    streams: dict[str, tuple[int, int]] = field(default_factory=dict)
    """job stream: entries, pending"""
    entries_added: int = 0
    queued_tokens: int = 0
    logs: dict[str, list[LogEntry]] = field(default_factory=dict)
    """job id: entry id and event; of jobs that were not settled"""
    lasted: dict[str, float] = field(default_factory=dict)
    """job id: seconds from its entry to its end; of jobs that were not settled"""
    entries: dict[str, EntryKey] = field(default_factory=dict)
    """job id: where it stood in its job stream"""
    tenants: dict[str, TenantJob] = field(default_factory=dict)
    """job id: what is known of a tenant's job; it has no place in `entries`"""
    dead: list[dict[str, str]] = field(default_factory=list)
    """id, code, stream, entry"""
    immortal: list[str] = field(default_factory=list)
    """keys of single jobs that would never expire"""
    returned: list[str] = field(default_factory=list)
    """keys of single jobs that had expired before"""
    unknown: list[str] = field(default_factory=list)
    """keys left after everything has expired that are none of the queue's own"""
    version: str = ""
    memory_before: int = 0
    memory_after: int = 0
    nodes: int = 1
    """servers"""

    def came_s(self, job_id: str) -> float | None:
        """When it was enqueued, by Redis' clock; None: it is not known."""
        if job_id in self.tenants:
            return self.tenants[job_id].came / 1000
        return added_s(self.entries[job_id]) if job_id in self.entries else None


@dataclass
class Evidence:
    plan: Plan
    drain_limit_s: float
    submitted: list[tuple[int, str]] = field(default_factory=list)
    """as in `Progress.submissions`"""
    raw_entries: int = 0
    delivered: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """as in `Progress.delivered`"""
    settled: Mapping[int, Summary] = field(default_factory=dict)
    """jobs that were checked while the run went on"""
    found: list[Finding] = field(default_factory=list)
    """what is wrong with them"""
    interrupted: bool = False
    """before all planned jobs were submitted"""
    answers: Mapping[int, Answer] = field(default_factory=dict)
    raised: list[Raised] = field(default_factory=list)
    expired: frozenset[int] = frozenset()
    """as in `Scene.expired`"""
    retried: frozenset[int] = frozenset()
    """as in `Scene.retried`"""
    surprises: list[str] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)
    unfinished_crowds: int = 0
    """as in `Scene.unfinished_crowds`"""
    connections: Mapping[str, int] = field(default_factory=dict)
    """the most that each process with an asyncio client had open at once"""
    failovers: list[tuple[float, float]] = field(default_factory=list)
    """from the death of the primary until there was another"""
    near_failovers: frozenset[int] = frozenset()
    """jobs that had to do with Redis then"""
    stretches: list[Stretch] = field(default_factory=list)
    garbage: list[EntryKey] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    takes: list[Take] = field(default_factory=list)
    given: list[Take] = field(default_factory=list)
    """jobs that a worker was given, whose engine may have hung before it began"""
    handed_back: list[Take] = field(default_factory=list)
    """jobs that made room, with their tokens then"""
    serving: Mapping[str, float] = field(default_factory=dict)
    """since when each life of a worker takes jobs"""
    troubles: list[Trouble] = field(default_factory=list)
    starved: list[Trouble] = field(default_factory=list)
    """when somebody waited for a core, which excuses nothing but counts for nobody"""
    cuts: Mapping[str, int] = field(default_factory=dict)
    """connections that the proxy has cut, by mode"""
    gauges: dict[str, dict[str, float]] = field(default_factory=dict)
    """worker: what it said of its batch and cache when all was done"""
    redis: RedisState = field(default_factory=RedisState)

    @property
    def ids(self) -> dict[int, str]:
        return dict(self.submitted)

    @cached_property
    def life_of(self) -> Mapping[str, Life]:
        """Lives by name."""
        return {life.name: life for life in self.lives}

    @cached_property
    def befell(self) -> Troubles:
        """All troubles, SIGSTOPs too."""
        stopped = (
            Trouble(*span, "stopped", life.process) for life in self.lives for span in life.stopped
        )
        return Troubles([*stopped, *self.troubles])

    @cached_property
    def passing(self) -> frozenset[str]:
        """Ids of jobs that go before all tenants' shares."""
        if self.plan.passing is None:
            return frozenset()
        return frozenset(
            job_id
            for number, job_id in self.submitted
            if self.job(number).priority == self.plan.passing.value
        )

    def made_room(self, one: Take, until: float) -> bool:
        """Whether its worker handed the job back. An engine that is in a step begins late on what
        it was given, and may have to hand back by then."""

        def is_its(other: Take) -> bool:
            return (other.job_id, other.life) == (one.job_id, one.life)

        all_given = sorted(other.at for other in self.given if is_its(other))
        given = [at for at in all_given if at <= one.at]
        following = min((at for at in all_given if at > one.at), default=math.inf)
        # It may begin at once on what it was given twice: first on what was given first.
        later = [other for other in self.takes if is_its(other) and one.at < other.at <= following]
        since = given[-1 - len(later)] if len(given) > len(later) else one.at
        return any(since <= back.at <= until for back in self.handed_back if is_its(back))

    def job(self, number: int) -> JobPlan:
        return self.plan.job(number)

    def logged_text(self, number: int, job_id: str) -> str:
        """Digest of what a job has said by its log."""
        if number in self.settled:
            return self.settled[number].text
        return digest(*said(event for _, event in self.redis.logs.get(job_id, [])))

    def summaries(self) -> Iterator[Summary]:
        """Of each job of which something was delivered."""
        yield from self.settled.values()
        for events in self.delivered.values():
            yield summarize(events, [])


def moves(takes: Iterable[Take]) -> Iterator[tuple[Take, Take]]:
    """Each time that a job was begun on again."""
    last: dict[str, Take] = {}
    for take in takes:
        if take.job_id in last:
            yield last[take.job_id], take
        last[take.job_id] = take


@dataclass(frozen=True)
class WorkerNotes:
    """What the workers wrote down."""

    takes: list[Take]
    given: list[Take]
    """as in `Evidence.given`"""
    handed_back: list[Take]
    """as in `Evidence.handed_back`"""
    serving: Mapping[str, float]
    """as in `Evidence.serving`"""
    delays: list[Trouble]
    """when one was held up"""


def read_workers(folder: Path) -> WorkerNotes:
    takes: dict[str, list[Take]] = {"take": [], "given": [], "handed_back": []}
    serving, delays = {}, []
    for life, (at, what, *rest) in journal.read(folder / WORKERS, "*.jsonl"):
        if what in takes:
            takes[what].append(Take(at, rest[0], rest[1], life))
        elif what == "serving":
            serving[life] = at
        elif what == "late":
            delays.append(Trouble(at - rest[1] - 0.2, at, what, life.partition(".")[0]))
    for some in takes.values():
        some.sort(key=lambda take: take.at)
    return WorkerNotes(takes["take"], takes["given"], takes["handed_back"], serving, delays)


def read_crowds(folder: Path) -> list[Crowd]:
    return [
        Crowd(number, job_id, streams, [(tokens, text) for tokens, text in given], raised)
        for _, (number, job_id, streams, given, raised) in journal.read(folder, "crowd-*.jsonl")
    ]


def read_raised(folder: Path) -> list[Raised]:
    entries = journal.read(folder, "raised-*.jsonl")
    return [Raised(number, at, error) for _, (number, _, at, error) in entries]


def added_s(entry: EntryKey) -> float:
    """When it was, by Redis' clock."""
    return int(entry.id.partition("-")[0]) / 1000


def read_partition(
    state: RedisState, client: redis.Redis, partition: Partition, job_ids: Iterable[str]
) -> None:
    server = client.info("server")
    version = server.get("valkey_version") or server["redis_version"]
    state.version = f"{server.get('server_name', 'redis')} {version}"
    tenants = [partition.tenant_jobs] if client.exists(partition.tenant_jobs) else []
    for stream in (*partition.all_jobs, *tenants):
        info: Any = client.xinfo_stream(stream)
        pending: Any = client.xpending(stream, GROUP)
        state.streams[stream] = (info["length"], pending["pending"])
        state.entries_added += info["entries-added"]
    state.queued_tokens += int(client.hget(partition.load, "tokens") or 0)
    letters: Any = client.xrange(partition.dead)
    state.dead += [
        {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
        for _, fields in letters
    ]
    own = sorted(job_id for job_id in job_ids if partition_of(job_id) == partition.index)
    for start in range(0, len(own), _CHUNK):
        read_jobs(state, client, partition, own[start : start + _CHUNK])


def read_jobs(
    state: RedisState, client: redis.Redis, partition: Partition, job_ids: Sequence[str]
) -> None:
    """Their logs, where they stood, and how long they took."""
    pipeline = client.pipeline(transaction=False)
    for job_id in job_ids:
        pipeline.xrange(partition.tokens(job_id))
        pipeline.hmget(partition.state(job_id), _PLACE)
    replies = iter(pipeline.execute())
    for job_id, entries, place in zip(job_ids, replies, replies, strict=True):
        words = [word and word.decode() for word in place]
        stream, entry, ended_ms, tenant = words[:4]
        if tenant and stream == partition.tenant_jobs:
            job = _tenant_job(partition, *words[2:])
            state.tenants[job_id] = job
            if job.ended is not None:
                state.lasted[job_id] = (job.ended - job.came) / 1000
        elif stream is not None and entry is not None:
            state.entries[job_id] = key = EntryKey(stream, entry)
            if ended_ms is not None:
                state.lasted[job_id] = int(ended_ms) / 1000 - added_s(key)
        state.logs[job_id] = [
            (entry.decode(), decode_event(fields[b"event"]).as_json()) for entry, fields in entries
        ]


def _tenant_job(
    partition: Partition,
    ended_ms: str | None,
    tenant: str,
    came_ms: str,
    tokens: str | None,
    started_ms: str | None,
) -> TenantJob:
    return TenantJob(
        tenant,
        partition.index,
        int(came_ms),
        None if started_ms is None else int(started_ms),
        None if ended_ms is None else int(ended_ms),
        int(tokens or 0),
    )


def note_first_takes(tenants: dict[str, TenantJob], takes: Iterable[Take]) -> None:
    """A state says when a job was taken last. What the workers wrote down is late by what they
    need to begin."""
    for take in takes:
        job = tenants.get(take.job_id)
        if job is not None and job.given is not None and take.at * 1000 < job.given:
            tenants[take.job_id] = replace(job, given=int(take.at * 1000))


def expire_all(
    client: redis.Redis,
    partitions: Sequence[Partition],
    state: RedisState,
    settled: Collection[str] = (),
) -> None:
    """Let the time to live of every job's keys on a node pass at once, and see what stays.

    `settled`: ids of jobs that have no keys any more.
    """
    own = {QUEUES}.union(
        key
        for p in partitions
        for key in (
            *(*p.all_streams, p.dead, p.load, p.model, p.workers, p.reclaim, *p.idle),
            *(p.wakeup, p.tenant_limits, p.tenants, p.placing),
            *(p.tenants.replace(":tenants", name) for name in (":clock", ":jobs")),
        )
    )
    keys = [key.decode() for key in client.scan_iter(count=_CHUNK)]
    state.returned += [
        key
        for key in keys
        if any(key.partition(part)[2] in settled for part in (":state:", ":tokens:"))
    ]
    for start in range(0, len(keys), _CHUNK):
        _expire(client, [key for key in keys[start : start + _CHUNK] if key not in own], state)


def _expire(client: redis.Redis, keys: Sequence[str], state: RedisState) -> None:
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.pttl(key)
    mortal = []
    for key, ttl_ms in zip(keys, pipeline.execute(), strict=True):
        if ttl_ms == GONE:
            continue
        if ttl_ms > 0:
            mortal.append(key)
        elif any(part in key for part in (":state:", ":tokens:", ":idempotency:")):
            state.immortal.append(key)
        else:
            state.unknown.append(key)
    pipeline = client.pipeline(transaction=False)
    for key in mortal:
        pipeline.pexpire(key, 1)
    pipeline.execute()
