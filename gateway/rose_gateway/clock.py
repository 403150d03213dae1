"""Redis' clock, which is that of whatever the gateways keep in Redis."""

from collections.abc import Sequence

from rose import transport

TIME = ("TIME",)
"""the command"""


async def now_ms(redis: transport.AsyncRedisClient) -> int:
    """Unix milliseconds. Raises: BrokerUnavailable"""
    with transport.broker_errors():
        return unix_ms(await redis.execute(*TIME))


def unix_ms(reply: Sequence[bytes]) -> int:
    """Of a reply to TIME: Unix milliseconds."""
    seconds, microseconds = reply
    return int(seconds) * 1000 + int(microseconds) // 1000
