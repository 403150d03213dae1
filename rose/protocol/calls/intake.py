"""How a worker gets entries of the job streams."""

from collections.abc import Iterable

from rose.errors import DeadlineExceeded
from rose.protocol.calls.call import Arg, Call
from rose.protocol.codec import MAX_JOB_BYTES, encode_event
from rose.protocol.events import FailedEvent
from rose.protocol.keys import GROUP, RELEASED, EntryKey, Partition
from rose.protocol.scripts import load

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
) -> Call:
    """`wait`: read nothing where another worker listens. `adopt`: after a lost reply, all entries
    that the consumer knows it owns; the others that it owns come first. `max_bytes`: of jobs in the
    reply, which the last one may exceed. `ttl_s`: of tenants' jobs whose deadline has passed while
    they waited, which end without a slot. `take_id`: with it new jobs that
    nobody has started before are started at once. `model`: as for `take`."""
    streams = partition.all_streams
    args: list[Arg] = [GROUP, consumer, count, ageing_ms, max_bytes, MAX_JOB_BYTES, RELEASED]
    args += ("wait" if wait else "", "" if adopt is None else "adopt", ttl_s, DEADLINE_PASSED)
    args += (take_id, model)
    args += (f"{streams.index(entry.stream) + 1} {entry.id}" for entry in adopt or ())
    keys = [*partition.idle, *streams, partition.bell, partition.load, partition.running]
    return Call(load("fetch"), keys, args)


def hand_on(partition: Partition, consumer: str, *, leaves: bool) -> Call:
    """Let the next idle worker listen. `leaves`: this one cannot where nobody else waits."""
    return Call(load("hand_on"), partition.idle, [consumer, "leaves" if leaves else ""])


def reclaim(partition: Partition, *, lease_ms: int, interval_ms: int, patience_ms: int) -> Call:
    """Give the entries of silent workers to `released`. `patience_ms`: how long workers may renew
    their leases after a time in which they could not."""
    args: list[Arg] = [GROUP, RELEASED, lease_ms, interval_ms, patience_ms]
    return Call(load("reclaim"), [partition.reclaim, *partition.all_streams], args)
