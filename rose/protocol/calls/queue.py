"""How a partition is created, announced, measured and cleaned up; its tenants and dead letters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rose.protocol.announced_model import MODEL_FIELDS
from rose.protocol.codec import encode_event
from rose.protocol.events import FailedEvent
from rose.protocol.jobs import JobSpec, Priority
from rose.protocol.keys import GROUP, RELEASED, EntryKey, Partition
from rose.protocol.scripts import Arg, Call, load, malformed, ms_until, now_ms, value_or
from rose.protocol.tenants import TenantLimits


def create_groups(partition: Partition) -> Call:
    """Also deletes those keys of the partition that hold something of another type. The reply is
    their names."""
    streams, fields, members = "XLEN", "HMGET any", "ZCARD"
    reads = {
        **dict.fromkeys(partition.all_streams, streams),
        **dict.fromkeys((partition.load, partition.model, partition.workers), fields),
        partition.dead: streams,
        partition.running: members,
        partition.turn: "ZADD XX 0 next",
        partition.wakeup: "XREVRANGE + - COUNT 0",
    }
    return Call(
        load("create_groups"), list(reads), [GROUP, len(partition.all_jobs), *reads.values()]
    )


def room(partition: Partition) -> Call:
    """Raises OutOfMemoryError where Redis is at its memory limit."""
    return Call(load("room"), [partition.load], [])


def queue_status(partition: Partition) -> Call:
    keys = [partition.load, partition.model, partition.dead, partition.workers]
    keys += partition.all_streams
    return Call(
        load("queue_status"),
        keys,
        [GROUP, ALIVE_S * 1000, *MODEL_FIELDS, "partitions", "placement"],
    )


def elect(partition: Partition, consumer: str, *, lease_ms: int) -> Call:
    """Become or remain the worker that reads the queue's gauges. A lease of 0 resigns."""
    return Call(load("elect"), [partition.reader], [consumer, lease_ms])


def oldest_waiting(partition: Partition) -> Call:
    return Call(load("oldest_waiting"), [partition.load, *partition.all_jobs], [GROUP])


def forget(partition: Partition, *, idle_ms: int) -> Call:
    """Delete consumers that hold nothing and have been silent for `idle_ms`."""
    streams = sorted(partition.all_jobs, key=lambda one: one != partition.jobs(Priority.NORMAL))
    keys = [partition.workers, *streams, partition.tenant_jobs]
    return Call(load("forget"), keys, [GROUP, idle_ms])


#: A worker that holds no job counts as alive for so long after it was last seen.
ALIVE_S = 15

#: No entry comes after this id. (To XREADGROUP the largest possible id means ">".)
_LAST_ID = "18446744073709551615-0"


def announce(
    partition: Partition,
    consumer: str,
    facts: Mapping[str, Arg],
    *,
    mode: Literal["join", "replace", "keep"],
    slots: int,
    vocabulary: str | None = None,
    placement: int | None = None,
) -> Call:
    """Say that a worker lives and what it serves, which `submit` reads. `facts` have at least
    `name` and `fingerprint`, which may be empty. `slots`: how many jobs it decodes at once.

    "join" is refused where other workers serve another model, and so is another number of
    partitions in `facts`, by "replace" too. "replace" makes this model the
    queue's, after which "keep" tells the workers of the other one so. `vocabulary`: the key under
    which the model's is kept, if it has one. `placement`: how many slots are for jobs that are
    placed; None without.
    """
    args: list[Arg] = [GROUP, consumer, RELEASED, ALIVE_S * 1000, _LAST_ID, mode, slots]
    args.append(value_or(placement, ""))
    args += [arg for fact in facts.items() for arg in fact]
    keys = [partition.model, partition.jobs(Priority.NORMAL), partition.workers]
    return Call(load("announce"), keys if vocabulary is None else [*keys, vocabulary], args)


class Standing(StrEnum):
    """Of a worker in its queue."""

    SERVES = "SERVES"
    REFUSED = "REFUSED"
    """The queue has another model, and living workers."""
    DIVIDED = "DIVIDED"
    """The queue has another number of partitions, and living workers."""
    REPLACED = "REPLACED"
    """The queue has changed to another model."""


@dataclass(frozen=True, slots=True)
class Announced:
    standing: Standing
    model: str
    """the queue's"""
    fingerprint: str
    lacks_vocabulary: bool = False
    """It is not in Redis."""
    partitions: str = ""
    """the queue's, as it was before"""
    places: bool = False
    """Jobs are placed: every worker of the queue does, and there are several."""


def announced(reply: Sequence[bytes]) -> Announced:
    """Reads the reply to `announce`.

    Raises: MalformedMessage
    """
    try:
        standing, model, fingerprint, *facts = (word.decode() for word in reply)
        lacks, partitions, places = facts
        return Announced(
            Standing(standing), model, fingerprint, lacks == "1", partitions, places == "1"
        )
    except ValueError as error:
        raise malformed("announce", error) from None


def set_tenant(partition: Partition, name: str, limits: TenantLimits | None) -> Call:
    """`limits`: the share of this partition; None to forget them. Replies 1 if it had some."""
    text = "" if limits is None else limits.encode()
    return Call(load("set_tenant"), [partition.load, partition.tenant_limits], [name, text])


def rename_tenant(partition: Partition, old: str, new: str, *, count: int) -> Call:
    """Give at most `count` jobs of a tenant another name, and then its limits. Reply: MORE, DONE or
    CONFLICT, and how many jobs have another name now."""
    keys = [partition.load, partition.tenant_limits, partition.tenant_jobs]
    return Call(load("rename_tenant"), keys, [GROUP, old, new, count])


def tenant_status(partition: Partition, *, top: int = 0, names: Iterable[str] = ()) -> Call:
    """How these tenants stand, and the `top` with the most jobs that have not ended.
    `read_tenants` reads the replies of all partitions."""
    keys = [partition.load, partition.tenant_limits, partition.tenant_jobs]
    return Call(load("tenant_status"), keys, [GROUP, top, *names])


def dead_letter(
    partition: Partition,
    entry: EntryKey,
    consumer: str,
    *,
    raw: bytes,
    job_id: str | None,
    event: FailedEvent,
    keep: int,
    keep_bytes: int,
    keep_s: int,
    ttl_s: int,
) -> Call:
    """`raw`: the encoded job; `job_id`: None if `raw` cannot be read; `event`: the reason, which
    becomes the job's terminal event. Keeps the newest `keep` dead letters for `keep_s` seconds, and
    no more of them than `keep_bytes` hold."""
    keys = [entry.stream, partition.dead]
    args: list[Arg] = [GROUP, consumer, entry.id, event.code, event.message, raw]
    args += [keep, keep_bytes, keep_s, ttl_s]
    if job_id is not None:
        keys += [partition.state(job_id), partition.tokens(job_id), partition.load]
        keys.append(partition.running)
        args += [job_id, encode_event(event)]
    return Call(load("dead_letter"), keys, args)


def retry(
    partition: Partition,
    letter: str,
    stream: str,
    job: JobSpec,
    raw: bytes,
    *,
    retry_of: str,
    tenant: str = "",
    level: int = 2,
) -> Call:
    """`letter`: the id of its entry in the stream of dead letters; `job`: has a new id; `stream`:
    the job stream that it came from. `tenant`, `level` (of its priority, from 1): as the letter
    says."""
    return Call(
        load("retry"),
        [partition.dead, stream, partition.state(job.id), partition.load],
        [
            letter,
            raw,
            retry_of,
            job.token_estimate,
            ms_until(job.deadline_ms, now_ms()),
            tenant,
            level,
            job.token_estimate - job.sampling.max_new_tokens,
        ],
    )
