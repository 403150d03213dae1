"""Calls that append tokens and ends of jobs to the logs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rose.protocol.calls.call import Arg, Call
from rose.protocol.calls.leases import Lease
from rose.protocol.codec import encode_event
from rose.protocol.events import Event
from rose.protocol.keys import GROUP, Partition
from rose.protocol.scripts import load


@dataclass(slots=True)
class Append:
    """New events of a job, in order: encoded token events, then its terminal event."""

    lease: Lease
    index: int
    """of the first token"""
    counts: list[int] = field(default_factory=list)
    """tokens in each event"""
    events: list[bytes] = field(default_factory=list)
    end: Event | None = None


def append(partition: Partition, items: Iterable[Append], *, ttl_s: int) -> Call:
    keys: list[str | bytes] = [partition.load, partition.running]
    args: list[Arg] = [GROUP, ttl_s]
    for item in items:
        lease, end, counts = item.lease, item.end, item.counts
        keys += (lease.state, lease.tokens)
        if end is not None:  # a terminal event's type is the job's status
            args.append(_header(item, end.type, lease.entry.id))
            args += item.events
            keys.append(lease.entry.stream)
            args.append(encode_event(end))
        elif len(counts) > 1:
            args.append(_header(item, "+" if lease.of_tenant else "-", "-"))
            args += item.events
        else:
            plus = "+" if lease.of_tenant else ""
            args += (f"{lease.take_id} {item.index} {item.index + counts[0]}{plus}", item.events[0])
    return Call(load("append"), keys, args)


def _header(item: Append, status: str, entry: str) -> str:
    counts = " ".join(map(str, item.counts))
    return f"{item.lease.take_id} {item.index} {status} {entry} {counts}"


def outcomes(reply: Sequence[Any], count: int) -> list[str]:
    """The outcome of each of the `count` items of an append: OK if the reply does not name it."""
    if not reply:
        return ["OK"] * count
    named = {int(reply[i]): reply[i + 1].decode() for i in range(0, len(reply), 2)}
    return [named.get(item, "OK") for item in range(count)]
