"""Whether a restart of Redis would bring back what scripts wrote.

Redis replays its AOF as the user `default`. What a script wrote in more than one command is a
transaction there, and Redis before 8.6 throws away one that this user might not run: docs/redis.md.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import redis
from redis.exceptions import ResponseError

from rose.protocol.keys import GROUP, Partition

#: The first Redis that replays a transaction whatever `default` may do. Of Valkey none is known.
_MENDED = (8, 6)


class Replay(Enum):
    WHOLE = "whole"
    LOSSY = "lossy"
    UNKNOWN = "unknown"
    """this user may not ask, and the version does not tell"""


def replay_of(server: redis.Redis, partition: Partition) -> Replay:
    """Raises: RedisError: it cannot be asked."""
    if user_of(server) == "default" or _is_mended(hello(server)):
        return Replay.WHOLE
    try:
        verdicts = [
            server.execute_command("ACL DRYRUN", "default", *words) for words in _writes(partition)
        ]
    except ResponseError:
        return Replay.UNKNOWN
    return Replay.WHOLE if all(_text(verdict) == "OK" for verdict in verdicts) else Replay.LOSSY


def user_of(server: redis.Redis) -> str:
    """As whom this connection was opened."""
    return server.get_connection_kwargs().get("username") or "default"


def primaries(client: redis.Redis | redis.RedisCluster) -> list[redis.Redis]:
    """Each server that holds a part of the keys."""
    if isinstance(client, redis.Redis):
        return [client]
    cluster: Any = client  # untyped
    return [cluster.get_redis_connection(node) for node in cluster.get_primaries()]


def hello(server: redis.Redis) -> dict[str, Any]:
    """What a server says of itself to anybody; empty where it does not know the question."""
    try:
        reply: Any = server.execute_command("HELLO")
    except ResponseError:
        return {}
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {str(_text(name)): _text(value) for name, value in pairs}


def _is_mended(about: dict[str, Any]) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", str(about.get("version", "")))
    return (
        about.get("server") == "redis"
        and numbers is not None
        and (int(numbers[1]), int(numbers[2])) >= _MENDED
    )


def _writes(partition: Partition) -> Iterator[tuple[str, ...]]:
    """Some of what scripts write, for each kind of key that holds a job."""
    nobody = "0-nobody"
    yield ("HSET", partition.state(nobody), "status", "finished")
    yield ("XADD", partition.tokens(nobody), "*", "event", "")
    yield ("DEL", partition.tokens(nobody))
    yield ("XACK", partition.all_jobs[0], GROUP, "0-1")
    yield ("HINCRBY", partition.load, "tokens", "1")


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
