"""Which jobs a caller has requested lately: an index of each owner's, beside the jobs.

It says where to look and nothing more. A job that has expired or was deleted is not there any more,
whatever the index says.
"""

import logging
import time
from collections.abc import Iterable

from rose import transport
from rose.errors import BrokerUnavailable
from rose_gateway.jobs.queued_job import QueuedJob

log = logging.getLogger("rose.gateway")

#: Of one owner; the oldest go.
MAX_JOBS = 1000
#: Longer than any result is kept.
_KEPT_S = 30 * 24 * 3600


class History:
    """Belongs to one event loop."""

    def __init__(self, redis: transport.AsyncRedisClient) -> None:
        self._redis = redis

    async def add(self, owner: str, job: QueuedJob) -> None:
        """A repeat stays where it was. A request does not fail because it cannot be noted."""
        key = _key(owner)
        # The clock of this gateway orders the list and decides nothing.
        now_ms = time.time_ns() // 1_000_000
        try:
            with transport.broker_errors():
                await self._redis.exchange(
                    [
                        ("ZADD", key, "NX", now_ms, job.member),
                        ("ZREMRANGEBYRANK", key, 0, -1 - MAX_JOBS),
                        ("EXPIRE", key, _KEPT_S),
                    ]
                )
        except BrokerUnavailable as error:
            log.warning("cannot note a job in the history of its owner: %s", error)

    async def jobs(self, owner: str) -> list[QueuedJob]:
        """The newest first. Raises: BrokerUnavailable"""
        with transport.broker_errors():
            members = await self._redis.execute("ZREVRANGE", _key(owner), 0, -1)
        return [QueuedJob.of(member.decode()) for member in members]

    async def forget(self, owner: str, jobs: Iterable[QueuedJob]) -> None:
        """Raises: BrokerUnavailable"""
        members = [job.member for job in jobs]
        if members:
            with transport.broker_errors():
                await self._redis.execute("ZREM", _key(owner), *members)


def _key(owner: str) -> str:
    """Sorted set: `queue:job` by when it was submitted."""
    return f"rose:gateway:history:{{{owner}}}"
