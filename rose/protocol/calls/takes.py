"""A worker fetches jobs, starts them, keeps them and gives them back."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

from rose.errors import DeadlineExceeded
from rose.protocol.codec import MAX_JOB_BYTES, encode_event
from rose.protocol.events import FailedEvent
from rose.protocol.keys import GROUP, RELEASED, EntryKey, JobEntry, Partition
from rose.protocol.scripts import Arg, Call, load, malformed


def new_take_id() -> str:
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True)
class Take:
    """A request to work on a job. A repeat with the same `take_id` returns what the first call
    did and charges nothing, as long as the worker still has the job."""

    entry: EntryKey
    job_id: str
    take_id: str = field(default_factory=new_take_id)


def take(
    partition: Partition,
    takes: Iterable[Take],
    consumer: str,
    *,
    ttl_s: int,
    model: str = "",
    mode: Literal["", "alone", "unread"] = "",
    placement: str = "",
) -> Call:
    """`model`: its fingerprint; a text that another one has started is not taken. `placement`: as
    for `fetch`.

    `mode`: "alone" takes suspects too; "unread" reads the next entry of the stream of the only
    job, takes it if it is that job, or a tenant's that waits alone, and lets the next idle worker
    listen if others wait.
    """
    keys = [partition.running]
    args: list[Arg] = [GROUP, consumer, ttl_s, mode, model, placement]
    for item in takes:
        keys += (
            item.entry.stream,
            partition.state(item.job_id),
            partition.tokens(item.job_id),
        )
        args += (item.entry.id, item.take_id)
    if mode == "unread":
        keys += partition.idle
    return Call(load("take"), keys, args)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a job with a known beginning was started."""

    whose: str
    """who had the longest known beginning of its prompt in its cache: this worker (`own`), `other`,
    `several`, or `nobody`"""
    tokens: int
    """of that beginning, estimated"""
    waited_s: float
    """how long it stood aside for a worker"""


@dataclass(slots=True)
class Taken:
    """The worker owns the job until somebody else takes it."""

    epoch: int
    attempts: int
    cancel_requested: bool
    logged: int
    """tokens in its log"""
    deadline_ms: int | None = None
    """by Redis' clock; None if `submit` has noted none"""
    now_ms: int = field(default=0, compare=False)
    """Redis' clock at the take"""
    taken_at: float = field(default_factory=time.monotonic, compare=False)
    take_id: str = field(default="", compare=False)
    """names this take in every append"""
    placed: Placed | None = field(default=None, compare=False)

    def seconds_until(self, time_ms: int) -> float:
        """Seconds from now until a time by Redis' clock; this host's clock does not matter."""
        return (time_ms - self.now_ms) / 1000 - (time.monotonic() - self.taken_at)


class NotTaken(Enum):
    NOTHING_TO_DO = auto()
    """The job has ended, is a duplicate, or belongs to another worker."""
    SUSPECT = auto()
    """The lease of the last take has lapsed without a new token: take it alone."""
    MALFORMED = auto()
    """Somebody else has written into the job's state or its log."""
    STATE_GONE = auto()
    """The job's log has tokens, and its state is deleted."""


@dataclass(frozen=True, slots=True)
class OfOtherModel:
    """Not taken: another model has written a part of the text."""

    logged: int
    """tokens in its log"""


def taken(reply: bytes, take_id: str) -> Taken | NotTaken | OfOtherModel:
    """Reads one item of the reply to a `take` with this id.

    Raises:
        MalformedMessage: take.lua does not reply so.
    """
    outcome, _, facts = reply.partition(b" ")
    if outcome == b"SUSPECT":
        return NotTaken.SUSPECT
    if outcome == b"MALFORMED":
        return NotTaken.MALFORMED
    if outcome == b"STATE_GONE":
        return NotTaken.STATE_GONE
    if outcome not in (b"TAKEN", b"OTHER_MODEL"):
        return NotTaken.NOTHING_TO_DO
    try:
        if outcome == b"OTHER_MODEL":
            return OfOtherModel(int(facts))
        words = facts.split()
        *numbers, deadline = words[:6]
        epoch, attempts, cancel_flag, logged, now = map(int, numbers)
        deadline_ms = None if deadline == b"-" else int(deadline)
        placed = None
        if more := words[6:]:
            whose, tokens, waited_ms = more
            placed = Placed(whose.decode(), int(tokens), int(waited_ms) / 1000)
    except ValueError as error:
        raise malformed("take", error) from None
    cancel = cancel_flag == 1
    return Taken(epoch, attempts, cancel, logged, deadline_ms, now, take_id=take_id, placed=placed)


#: One fetch returns jobs of at most about this many bytes, so that it fits into the call's
#: timeout.
MAX_FETCH_BYTES = 4 * 2**20

#: The end of a job whose deadline has passed before it began.
DEADLINE_PASSED = encode_event(FailedEvent.of(DeadlineExceeded("its deadline has passed"), index=0))

#: How long the name of a listener stands without a word from it, and the note that others wait: as
#: in common.lua.
LISTENER_MS, WAITING_MS = 1000, 3000


def fetch(
    partition: Partition,
    consumer: str,
    count: int,
    *,
    ageing_ms: int,
    wait: bool = False,
    adopt: Iterable[EntryKey] | None = None,
    max_bytes: int = MAX_FETCH_BYTES,
    ttl_s: int = 3600,
    take_id: str = "",
    model: str = "",
    placement: str = "",
    hand_backs: str = "",
) -> Call:
    """`wait`: read nothing where another worker listens. `adopt`: after a lost reply, all entries
    that the consumer knows it owns; the others that it owns come first. `max_bytes`: of jobs in the
    reply, which the last one may exceed. `ttl_s`: of tenants' jobs whose deadline has passed while
    they waited, which end without a slot. `take_id`: with it new jobs that
    nobody has started before are started at once. `model`: as for `take`. `placement`: longest time
    for which a job is passed over for the worker that has the beginning of its prompt, in ms, and
    the tokens of a prompt that this one computes in a second; "" for none of that. `hand_backs`: ""
    without them, "-" where slots are free, else what fetch.lua says of jobs that get another's."""
    streams = partition.all_streams
    args: list[Arg] = [GROUP, consumer, count, ageing_ms, max_bytes, MAX_JOB_BYTES, RELEASED]
    args += ("wait" if wait else "", "" if adopt is None else "adopt", ttl_s, DEADLINE_PASSED)
    args += (take_id, model, placement, hand_backs)
    args += (f"{streams.index(entry.stream) + 1} {entry.id}" for entry in adopt or ())
    keys = [*partition.idle, *streams, partition.wakeup, partition.load, partition.running]
    return Call(load("fetch"), keys, args)


def hand_on(partition: Partition, consumer: str, *, leaves: bool) -> Call:
    """Let the next idle worker listen. `leaves`: this one cannot where nobody else waits."""
    return Call(load("hand_on"), partition.idle, [consumer, "leaves" if leaves else ""])


def reclaim(partition: Partition, *, lease_ms: int, interval_ms: int, patience_ms: int) -> Call:
    """Give the entries of silent workers to `released`. `patience_ms`: how long workers may renew
    their leases after a time in which they could not."""
    args: list[Arg] = [GROUP, RELEASED, lease_ms, interval_ms, patience_ms]
    return Call(load("reclaim"), [partition.reclaim, *partition.all_streams], args)


@dataclass(slots=True)
class Lease:
    """What a worker holds while it works on a job. The keys are made once a job, not once a
    token."""

    partition: Partition
    entry: EntryKey
    job_id: str
    take_id: str
    """of the take by which the worker got it: no append counts without it"""
    of_tenant: bool = field(init=False)
    state: bytes = field(init=False)
    tokens: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.of_tenant = self.entry.stream == self.partition.tenant_jobs
        self.state = self.partition.state(self.job_id).encode()
        self.tokens = self.partition.tokens(self.job_id).encode()


def renew(stream: str, consumer: str, entries: Iterable[str]) -> Call:
    return Call(load("renew"), [stream], [GROUP, consumer, *entries])


def release(
    partition: Partition,
    stream: str,
    consumer: str,
    jobs: Sequence[JobEntry],
    *,
    take_ids: Sequence[str] = (),
) -> Call:
    """`jobs`: entries of `stream`. `take_ids`: of each of them the take that ends; without them
    whichever there is."""
    args: list[Arg] = [GROUP, consumer, RELEASED]
    for job, take_id in zip(jobs, take_ids or [""] * len(jobs), strict=True):
        args += (job.entry.id, take_id)
    return Call(load("release"), [stream, *(partition.state(job.job_id) for job in jobs)], args)


def leave(partition: Partition, consumer: str, *, places: bool = False) -> Call:
    """Leave the groups. What the consumer still owns is released. `places`: it has announced
    slots for jobs that are placed."""
    args: list[Arg] = [GROUP, consumer, RELEASED, "placing" if places else ""]
    return Call(load("leave"), [partition.workers, *partition.all_streams], args)


#: How much one call of the sweep reads: at most some milliseconds of Redis' time.
_SWEEP_ENTRIES, _SWEEP_BYTES, _SWEEP_JOBS = 100, 2**20, 100


def sweep(
    partition: Partition, positions: Sequence[bytes], *, again_s: float, ttl_s: int = 3600
) -> Call:
    """Find entries and jobs that nobody would find otherwise. `positions`: from the last look,
    or empty. `again_s`: how long a job that has its entry is not looked at again. `ttl_s`:
    of parked jobs whose deadline has passed."""
    args: list[Arg] = [GROUP, RELEASED, _SWEEP_ENTRIES, _SWEEP_BYTES, _SWEEP_JOBS]
    args += [int(again_s * 1000), ttl_s, DEADLINE_PASSED]
    args += positions or [b""] * len(partition.all_streams)
    keys = [partition.running, partition.load, *partition.all_streams]
    return Call(load("sweep"), keys, args)


@dataclass(frozen=True, slots=True)
class Swept:
    released: int
    """entries that no pending list held"""
    positions: Sequence[bytes]
    lost: Sequence[Lease]
    """jobs without an entry"""
    tokens: Sequence[int]
    """in the log of each of these"""


def swept(partition: Partition, reply: Sequence[Any]) -> Swept:
    """Reads the reply to `sweep`.

    Raises: MalformedMessage
    """
    released, positions, jobs = reply
    lost, tokens = [], []
    try:
        for job_id, take_id, logged, stream, entry in jobs:
            place = EntryKey(stream.decode(), entry.decode())
            lost.append(Lease(partition, place, job_id.decode(), take_id.decode()))
            tokens.append(int(logged))
    except ValueError as error:
        raise malformed("sweep", error) from None
    return Swept(released, positions, lost, tokens)
