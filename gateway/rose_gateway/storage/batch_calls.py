"""The scripts of batches as calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rose.protocol.calls import Arg, Call
from rose.protocol.keys import BulkKeys
from rose.protocol.scripts import Script
from rose_gateway.scripts import own_script

#: A lease that ends later than this is from before Redis' clock was set back.
MAX_LEASE_S = 3600


@dataclass(frozen=True, slots=True)
class Lease:
    """A runner's claim to a batch. Epoch and runner together tell it from every other claim."""

    batch_id: str
    epoch: int
    runner: str
    """drawn for this claim"""


def create(
    batch_id: str,
    owner: str,
    fields: Mapping[str, Arg],
    *,
    ttl_s: int,
    oldest_id: str,
    max_unfinished: int,
    owes_event: bool,
) -> Call:
    """`max_unfinished`: batches of the owner; 0: no limit."""
    state, unfinished = BulkKeys.batch(batch_id), BulkKeys.UNFINISHED
    keys = [state, unfinished, BulkKeys.batches(owner), BulkKeys.unfinished_of(owner)]
    if owes_event:
        keys.append(BulkKeys.WEBHOOK_BATCHES)
    args = [batch_id, ttl_s * 1000, oldest_id, max_unfinished, owner, *_flat(fields)]
    return Call(_script("create"), keys, args)


def read(*batch_ids: str) -> Call:
    keys = [key for id_ in batch_ids for key in (BulkKeys.batch(id_), *_bitmaps(id_))]
    return Call(_script("read"), keys, [])


def cancel(batch_id: str) -> Call:
    return Call(_script("cancel"), [BulkKeys.batch(batch_id)], [])


def claim(runner: str, *, lease_s: float, limit: int) -> Call:
    """`runner`: one that no other claim names."""
    args: list[Arg] = [runner, _ms(lease_s), limit, MAX_LEASE_S * 1000, BulkKeys.batch("")]
    return Call(_script("claim"), [BulkKeys.UNFINISHED], args)


def renew(lease: Lease, *, lease_s: float) -> Call:
    args: list[Arg] = [lease.batch_id, lease.epoch, lease.runner, _ms(lease_s)]
    return Call(_script("renew"), [BulkKeys.batch(lease.batch_id), BulkKeys.UNFINISHED], args)


def release(lease: Lease, *, pause_s: float = 0.0, failure: bool = False) -> Call:
    args: list[Arg] = [lease.batch_id, lease.epoch, lease.runner, _ms(pause_s), int(failure)]
    return Call(_script("release"), [BulkKeys.batch(lease.batch_id), BulkKeys.UNFINISHED], args)


def prepare(lease: Lease, line: int | None) -> Call:
    """None: the line is prepared."""
    args: list[Arg] = [lease.epoch, lease.runner, "" if line is None else line]
    return Call(_script("prepare"), [BulkKeys.batch(lease.batch_id)], args)


def count_lines(lease: Lease, successes: Sequence[int], failures: Sequence[int]) -> Call:
    """Numbers of lines, from 1."""
    id_ = lease.batch_id
    args: list[Arg] = [lease.epoch, lease.runner]
    args += [*(line - 1 for line in successes), *(-line for line in failures)]
    return Call(_script("count_lines"), [BulkKeys.batch(id_), *_bitmaps(id_)], args)


def register(lease: Lease, checkpoint: bytes, *, until_ms: int) -> Call:
    """`until_ms`: when a batch that comes to no end is given up."""
    id_ = lease.batch_id
    args: list[Arg] = [lease.epoch, lease.runner, checkpoint, until_ms]
    return Call(_script("register"), [BulkKeys.batch(id_), BulkKeys.checkpoint(id_)], args)


def advance(lease: Lease, before: str, after: str, fields: Mapping[str, Arg]) -> Call:
    args: list[Arg] = [lease.epoch, lease.runner, before, after, *_flat(fields)]
    return Call(_script("advance"), [BulkKeys.batch(lease.batch_id)], args)


def finish(lease: Lease, status: str, *, ttl_s: int) -> Call:
    id_ = lease.batch_id
    keys = [BulkKeys.batch(id_), BulkKeys.UNFINISHED, *_bitmaps(id_), BulkKeys.checkpoint(id_)]
    args: list[Arg] = [id_, lease.epoch, lease.runner, status, ttl_s * 1000]
    return Call(_script("finish"), keys, args)


def _bitmaps(batch_id: str) -> tuple[str, str]:
    return BulkKeys.ended(batch_id), BulkKeys.failed(batch_id)


def _flat(fields: Mapping[str, Arg]) -> list[Arg]:
    return [part for pair in fields.items() for part in pair]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _script(name: str) -> Script:
    return own_script(__package__, f"batch_{name}")
