"""Which errors of Redis are worth a retry, and what a caller is told."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from rose.errors import BrokerUnavailable, RedisFull
from rose.transport.loop_thread import closed as closed

#: Answers for which redis-py has no class: a script of somebody's runs for seconds; the disk is
#: full, so that Redis takes no writes; too few replicas follow.
_CANNOT_SERVE = ("BUSY ", "MISCONF ", "NOREPLICAS ")


class CannotServe(ResponseError):
    """Redis is there and refuses for now."""


def named(error: Exception) -> Exception:
    """An error of redis-py, as CannotServe where it says no more than its text does."""
    if type(error) is ResponseError and str(error).startswith(_CANNOT_SERVE):
        return CannotServe(str(error))
    return error


#: Redis is there and cannot serve now: it starts, is a replica since a moment ago, or has lost its
#: primary; or its cluster is being repaired. ClusterDownError includes MASTERDOWN.
_ANSWERED = (CannotServe, BusyLoadingError, ReadOnlyError, ClusterDownError, TryAgainError)

#: Failures after which a reader reconnects and continues from its cursor, and after which a call is
#: repeated. RedisClusterException is no RedisError.
CONNECTION_LOST = (
    redis.ConnectionError,
    redis.TimeoutError,
    *_ANSWERED,
    AskError,  # and MovedError, which is one
    # No node of the cluster says which node has a slot.
    ClusterError,
    RedisClusterException,
)

#: Of these replies: the server cannot serve now, or the address may lead to another one.
TURNED_AWAY = (ReadOnlyError, CannotServe)
#: Whatever redis-py raises.
BROKER_ERRORS = (RedisError, RedisClusterException)

#: Redis on a command inside a script for which the user lacks a right: 7.0, and since 7.2.
_SCRIPT_REFUSED = ("The user executing the script can't", "ACL failure in script")

#: Our scripts compile, and their commands are known, from Redis 7.0 on.
_TOO_OLD = ("Error compiling script", "unknown command")


def is_overwritten(error: Exception) -> bool:
    """A key of the queue is gone, or another program has written a value of another type there. A
    worker makes it anew."""
    return str(error).startswith(("NOGROUP ", "WRONGTYPE "))


@contextmanager
def broker_errors() -> Iterator[None]:
    """Turn what redis-py raises into one line of ours.

    Raises:
        BrokerUnavailable; RedisFull
    """
    try:
        yield
    except OutOfMemoryError as error:
        raise RedisFull(
            "Redis is out of memory (maxmemory): nothing was enqueued; jobs go on, "
            "try again when some have ended and expired, or give Redis more"
        ) from error
    except BROKER_ERRORS as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, NoPermissionError) or any(text in reason for text in _SCRIPT_REFUSED):
            raise BrokerUnavailable(
                f"Redis refuses the user of ROSE_REDIS_URL: {reason} (deploy/redis/users.acl has "
                "the rights of each part; `ACL LOG` in Redis says which one was missing)"
            ) from error
        if isinstance(named(error), _ANSWERED):
            raise BrokerUnavailable(f"Redis cannot serve now, and says: {reason}") from error
        if any(text in reason for text in _TOO_OLD):
            raise BrokerUnavailable(
                f"Redis cannot be used: {reason} (it must be Redis 7.0, Valkey 8.1 or newer, and a "
                "proxy before it must let every command pass)"
            ) from error
        if is_overwritten(error):
            raise BrokerUnavailable(
                f"a key of the queue holds something of another program: {reason}: a worker that "
                "lives makes it anew within seconds, try again then"
            ) from error
        raise BrokerUnavailable(
            f"Redis cannot be used: {reason} (is it running, and is ROSE_REDIS_URL right?)"
        ) from error


class Closable:
    """What serves nobody once it is closed."""

    _closed = False

    def _check_open(self) -> None:
        """Raises: BrokerUnavailable"""
        if self._closed:
            raise closed()
