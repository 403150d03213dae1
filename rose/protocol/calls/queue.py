"""How a partition is created, measured and cleaned up."""

from rose.protocol.announced_model import MODEL_FIELDS
from rose.protocol.calls.announcement import ALIVE_S
from rose.protocol.calls.call import Call
from rose.protocol.jobs import Priority
from rose.protocol.keys import GROUP, Partition
from rose.protocol.scripts import load


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
        partition.bell: "XREVRANGE + - COUNT 0",
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
    return Call(load("queue_status"), keys, [GROUP, ALIVE_S * 1000, *MODEL_FIELDS, "partitions"])


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
