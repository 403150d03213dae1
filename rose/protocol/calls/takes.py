"""A worker starts a job."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from rose.protocol.calls.call import Arg, Call, malformed
from rose.protocol.keys import GROUP, EntryKey, Partition
from rose.protocol.scripts import load


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
) -> Call:
    """`model`: its fingerprint; a text that another one has started is not taken.

    `mode`: "alone" takes suspects too; "unread" reads the next entry of the stream of the only
    job, takes it if it is that job, or a tenant's that waits alone, and lets the next idle worker
    listen if others wait.
    """
    keys = [partition.running]
    args: list[Arg] = [GROUP, consumer, ttl_s, mode, model]
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
        *numbers, deadline = facts.split()
        epoch, attempts, cancel_flag, logged, now = map(int, numbers)
        deadline_ms = None if deadline == b"-" else int(deadline)
    except ValueError as error:
        raise malformed("take", error) from None
    return Taken(epoch, attempts, cancel_flag == 1, logged, deadline_ms, now, take_id=take_id)
