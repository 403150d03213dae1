"""What foreign commands, backups and failovers leave behind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rose.protocol.calls.call import Arg, Call, malformed
from rose.protocol.calls.intake import DEADLINE_PASSED
from rose.protocol.calls.leases import Lease
from rose.protocol.keys import GROUP, RELEASED, EntryKey, Partition
from rose.protocol.scripts import load

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
