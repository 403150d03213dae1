"""Why a queue's jobs may wait for ever, for `rose status` and `rose doctor`."""

from collections.abc import Sequence

from rose.protocol.status import QueueStatus
from rose.validation import did_you_mean
from rose_cli.output import printable
from rose_producer import Client


def served_queues(client: Client) -> Sequence[str]:
    """The queues on this Redis that have a worker. Raises: BrokerUnavailable"""
    return [printable(one.queue) for one in client.queues() if one.workers]


def nobody_serves(queue: str, served: Sequence[str]) -> str:
    """`served`: the queues that have a worker; one of them may be meant."""
    others = f"; served on this Redis: {', '.join(served)}" if served else ""
    return f"no worker serves queue {queue}{did_you_mean(queue, served)}{others}"


def other_partitions(status: QueueStatus, partitions: int) -> str | None:
    """What to say where the workers have another number of partitions than is set here."""
    if status.partitions in (None, partitions):
        return None
    return (
        f"ROSE_PARTITIONS is {partitions} here, and the workers of queue {status.queue} have "
        f"{status.partitions}: nobody would see some of the jobs"
    )
