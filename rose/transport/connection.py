"""Makes redis-py's clients, with the address and the options of the settings.

They repeat no call: `rose.transport.failures` decides that. Only on a cluster redis-py may repeat a
call once, since its error tells where the slot has moved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo

from rose.errors import ConfigurationError
from rose.settings import QueueSettings
from rose.transport.pipeline import pack
from rose.transport.redis_internals import sentinels_of, try_options
from rose.transport.urls import Address, Kind, parse_address

#: What connections tell Redis of themselves. Without it redis-py reads its version from the
#: installed package's metadata for each connection, a millisecond that blocks the event loop.
_DRIVER = DriverInfo()


class _Packer:
    """In place of redis-py's, which gives hiredis numbers: see `pack`."""

    def pack(self, *words: Any) -> list[bytes]:
        name, *rest = (
            bytes(word) if isinstance(word, bytearray | memoryview) else word for word in words
        )
        return [pack([*name.split(), *rest])]


class _BehindSentinel(redis.Redis):
    """Closes its clients of the Sentinels, too."""

    def close(self) -> None:
        super().close()
        for sentinel in sentinels_of(self):
            sentinel.close()


class _AsyncBehindSentinel(redis.asyncio.Redis):
    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        for sentinel in sentinels_of(self):
            await sentinel.aclose()


def connect(
    settings: QueueSettings, *, retries: int = 0, reply_timeout_s: float | None = None
) -> redis.Redis | redis.RedisCluster:
    """Connects at the first call; to a cluster at once.

    `retries`: of a call that has failed, on a cluster.
    `reply_timeout_s`: for blocking reads, whose timeout must exceed their BLOCK time.

    Raises:
        ConfigurationError
        CONNECTION_LOST: no node of the cluster answers.
    """
    client: redis.Redis | redis.RedisCluster
    address = address_of(settings)
    if address.kind is not Kind.CLUSTER:
        client = _client(redis, _BehindSentinel, settings, reply_timeout_s)
        return client
    options = {**_options(redis, settings, reply_timeout_s), **address.options}
    options["retry"] = redis.retry.Retry(NoBackoff(), retries)
    # If one node is unreachable, the partitions of the others continue.
    options["require_full_coverage"] = False
    with _valid_options():
        nodes = [redis.cluster.ClusterNode(*node) for node in address.nodes]
        client = redis.RedisCluster(startup_nodes=nodes, **options)
    return client


def connect_async(
    settings: QueueSettings, *, reply_timeout_s: float | None = None
) -> redis.asyncio.Redis:
    """As `connect`, but not to a cluster."""
    client: redis.asyncio.Redis
    client = _client(redis.asyncio, _AsyncBehindSentinel, settings, reply_timeout_s)
    return client


def connect_node_async(
    settings: QueueSettings, node: tuple[str, int], reply_timeout_s: float
) -> redis.asyncio.Redis:
    """To one node of a cluster. Connects at the first call. Raises: ConfigurationError"""
    options = {**_options(redis.asyncio, settings, reply_timeout_s), **address_of(settings).options}
    options["socket_connect_timeout"] = min(reply_timeout_s, settings.redis_timeout_s)
    with _valid_options():
        client: redis.asyncio.Redis = redis.asyncio.Redis(host=node[0], port=node[1], **options)
        try_options(client)
        return client


def _client(
    library: Any, behind_sentinel: type, settings: QueueSettings, reply_timeout_s: float | None
) -> Any:
    """`library`: redis or redis.asyncio, which name their classes alike."""
    address = address_of(settings)
    options = _options(library, settings, reply_timeout_s)
    with _valid_options():
        if address.kind is Kind.SENTINEL:
            own = {**options, **address.sentinel}
            sentinel = library.Sentinel(address.nodes, sentinel_kwargs=own, **options)
            return sentinel.master_for(
                address.service, redis_class=behind_sentinel, **address.options
            )
        if "path" in address.options:  # a Unix socket, which knows no keepalive
            del options["socket_keepalive"]
        if library is redis:
            options["command_packer"] = _Packer()
        client = library.Redis.from_url(address.plain, **options)
        try_options(client)
        return client


def _options(
    library: Any, settings: QueueSettings, reply_timeout_s: float | None
) -> dict[str, Any]:
    return {
        "socket_timeout": reply_timeout_s or settings.redis_timeout_s,
        "socket_connect_timeout": settings.redis_timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 30,
        # Each caller uses one at a time, so the number of callers bounds them.
        "max_connections": 10_000,
        # Replies have one shape on every server and through every proxy.
        "protocol": 2,
        "driver_info": _DRIVER,
        "retry": library.retry.Retry(NoBackoff(), 0),
    }


def address_of(settings: QueueSettings) -> Address:
    """Raises: ConfigurationError"""
    return parse_address(settings.redis_url.get_secret_value())


def database_of(settings: QueueSettings) -> int:
    """Its number; 0 on a cluster, which has no other. Raises: ConfigurationError"""
    return int(address_of(settings).options.get("db") or 0)


@contextmanager
def _valid_options() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        # The URL itself stays out of the message: it may hold a password.
        raise ConfigurationError(
            f"ROSE_REDIS_URL cannot be used: an option has a wrong name or value ({error})"
        ) from None
