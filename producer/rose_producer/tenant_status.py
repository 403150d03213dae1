"""How the tenants of a queue stand, over all its partitions."""

from __future__ import annotations  # transport.AsyncRedisClient would load redis

from collections.abc import Sequence

from rose import transport
from rose.errors import InvalidParameter
from rose.protocol import Partition
from rose.protocol.calls import tenant_status
from rose.protocol.tenants import TenantsStatus, read_tenants

#: More than a partition has; a script counts no further than 2^53.
_MAX_COUNT = 1_000_000


async def top_tenants(
    redis: transport.AsyncRedisClient, partitions: Sequence[Partition], count: int
) -> TenantsStatus:
    """The tenants with the most jobs that have not ended, and those whose jobs have waited longest:
    at most `count` of each partition and kind; and all tenants together.

    Raises: InvalidParameter, BrokerUnavailable, MalformedMessage
    """
    if type(count) is not int or not 0 <= count <= _MAX_COUNT:
        raise InvalidParameter(
            f"count: must be a whole number from 0 to {_MAX_COUNT}, not {count!r:.80}"
        )
    status = await tenants_status(redis, partitions, top=count)
    if len(partitions) == 1:
        return status
    # One of the first here may not be one of the first there.
    return await tenants_status(redis, partitions, names=[tenant.name for tenant in status.top])


async def tenants_status(
    redis: transport.AsyncRedisClient,
    partitions: Sequence[Partition],
    *,
    top: int = 0,
    names: Sequence[str] = (),
) -> TenantsStatus:
    """Raises: BrokerUnavailable, MalformedMessage"""
    with transport.broker_errors():
        replies = [await redis.run(tenant_status(p, top=top, names=names)) for p in partitions]
    return read_tenants(names, replies)
