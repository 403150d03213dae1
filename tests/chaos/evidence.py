"""What a run has left behind, for the checks: files of the processes, and Redis as it is now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from rose.protocol import GROUP, EntryKey, Partition, decode_event, partition_of
from tests.chaos import journal
from tests.chaos.managed_process import Life
from tests.chaos.plan import JobPlan, Plan

_CHUNK = 500
#: PTTL of a key that has expired just now.
_GONE = -2


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job says when nobody disturbs it."""

    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Take:
    """A worker's engine begins on a job, at the token after `done`."""

    at: float
    job_id: str
    done: int
    life: str
    """the worker's, as `Life.name`"""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that may cost a worker its leases."""

    began: float
    ended: float
    what: str
    process: str | None = None
    """whose; None: everybody's"""
    partitions: frozenset[int] | None = None
    """in which; None: in all"""

    def concerns(self, process: str, partition: int) -> bool:
        return self.process in (None, process) and (
            self.partitions is None or partition in self.partitions
        )


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
    least: int
    """so many had to be"""


@dataclass
class RedisState:
    """At the end, when nobody is connected any more."""

    streams: dict[str, tuple[int, int]] = field(default_factory=dict)
    """job stream: entries, pending"""
    entries_added: int = 0
    queued_tokens: int = 0
    logs: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)
    """job id: entry id and event"""
    entries: dict[str, EntryKey] = field(default_factory=dict)
    """job id: where it stood in its job stream"""
    dead: list[dict[str, str]] = field(default_factory=list)
    """id, code, stream, entry"""
    immortal: list[str] = field(default_factory=list)
    """keys of single jobs that would never expire"""
    unknown: list[str] = field(default_factory=list)
    """keys left after everything has expired that are none of the queue's own"""
    version: str = ""
    memory_before: int = 0
    memory_after: int = 0
    nodes: int = 1
    """servers"""


@dataclass
class Evidence:
    plan: Plan
    drain_limit_s: float
    submitted: list[tuple[int, str]] = field(default_factory=list)
    """as in `Progress.submissions`"""
    raw_entries: int = 0
    delivered: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """as in `Progress.delivered`"""
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
    serving: Mapping[str, float] = field(default_factory=dict)
    """since when each life of a worker takes jobs"""
    troubles: list[Trouble] = field(default_factory=list)
    cuts: Mapping[str, int] = field(default_factory=dict)
    """connections that the proxy has cut, by mode"""
    gauges: dict[str, dict[str, float]] = field(default_factory=dict)
    """worker: what it said of its batch and cache when all was done"""
    redis: RedisState = field(default_factory=RedisState)

    @property
    def ids(self) -> dict[int, str]:
        return dict(self.submitted)

    def job(self, number: int) -> JobPlan:
        return self.plan.job(number)


def moves(evidence: Evidence) -> Iterator[tuple[Take, Take]]:
    """Each time that a job was begun on again."""
    last: dict[str, Take] = {}
    for take in evidence.takes:
        if take.job_id in last:
            yield last[take.job_id], take
        last[take.job_id] = take


def read_takes(folder: Path) -> list[Take]:
    takes = [
        Take(at, rest[0], rest[1], life)
        for life, (at, what, *rest) in journal.read(folder, "worker-*.jsonl")
        if what == "take"
    ]
    return sorted(takes, key=lambda take: take.at)


def read_crowds(folder: Path) -> list[Crowd]:
    return [
        Crowd(number, job_id, streams, [(tokens, text) for tokens, text in given], raised)
        for _, (number, job_id, streams, given, raised) in journal.read(folder, "crowd-*.jsonl")
    ]


def read_serving(folder: Path) -> dict[str, float]:
    entries = journal.read(folder, "worker-*.jsonl")
    return {life: at for life, (at, what, *_) in entries if what == "serving"}


def read_raised(folder: Path) -> list[Raised]:
    entries = journal.read(folder, "raised-*.jsonl")
    return [Raised(number, at, error) for _, (number, _, at, error) in entries]


def read_delays(folder: Path) -> Iterator[Trouble]:
    """When a worker was held up."""
    for life, (at, what, *rest) in journal.read(folder, "worker-*.jsonl"):
        if what == "late":
            yield Trouble(at - rest[1] - 0.2, at, what, life.partition(".")[0])


def read_partition(
    state: RedisState, client: redis.Redis, partition: Partition, job_ids: Iterable[str]
) -> None:
    server = client.info("server")
    version = server.get("valkey_version") or server["redis_version"]
    state.version = f"{server.get('server_name', 'redis')} {version}"
    for stream in partition.all_jobs:
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
        _read_jobs(state, client, partition, own[start : start + _CHUNK])


def _read_jobs(
    state: RedisState, client: redis.Redis, partition: Partition, job_ids: list[str]
) -> None:
    pipeline = client.pipeline(transaction=False)
    for job_id in job_ids:
        pipeline.xrange(partition.tokens(job_id))
        pipeline.hmget(partition.state(job_id), "stream", "entry")
    replies = iter(pipeline.execute())
    for job_id, entries, place in zip(job_ids, replies, replies, strict=True):
        if None not in place:
            state.entries[job_id] = EntryKey(*(word.decode() for word in place))
        state.logs[job_id] = [
            (entry.decode(), decode_event(fields[b"event"]).model_dump())
            for entry, fields in entries
        ]


def expire_all(client: redis.Redis, partitions: Iterable[Partition], state: RedisState) -> None:
    """Let the time to live of every job's keys on a node pass at once, and see what stays."""
    own = {
        key
        for p in partitions
        for key in (*p.all_jobs, p.dead, p.load, p.model, p.reclaim, *p.idle)
    }
    keys = [key.decode() for key in client.scan_iter(count=_CHUNK)]
    for start in range(0, len(keys), _CHUNK):
        chunk = [key for key in keys[start : start + _CHUNK] if key not in own]
        pipeline = client.pipeline(transaction=False)
        for key in chunk:
            pipeline.pttl(key)
        mortal = []
        for key, ttl_ms in zip(chunk, pipeline.execute(), strict=True):
            if ttl_ms == _GONE:
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
