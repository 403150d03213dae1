"""Which errors of Redis are worth a retry, how long it is repeated, and what a caller is told."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
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

from rose.errors import BrokerUnavailable, ClientClosed, RedisFull

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
        """Raises: ClientClosed"""
        if self._closed:
            raise ClientClosed()


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double up to a maximum. Jitter takes up to half of each pause, so that clients do
    not all return at once when Redis is back."""

    first_s: float
    longest_s: float

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        pause_s = min(self.first_s * 2.0 ** min(failures - 1, 32), self.longest_s)
        return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret


#: For a call, whose caller waits.
CALL = Backoff(first_s=0.1, longest_s=2.0)

#: For a stream that has lost its connection.
STREAM = Backoff(first_s=0.05, longest_s=2.0)

#: For a connection for subscriptions. Many streams may wait for it.
SUBSCRIPTION = Backoff(first_s=0.05, longest_s=0.5)

#: For a connection for round trips. Many callers may wait for it, and each has pauses of its own.
CONNECTION = Backoff(first_s=0.02, longest_s=0.2)

#: For a worker's loops, which continue until Redis is back.
WORKER = Backoff(first_s=0.1, longest_s=1.0)

#: For a line of a batch, which has hours: until Redis is back, or the queue has room.
BATCH = Backoff(first_s=0.2, longest_s=5.0)


class Outage:
    """Counts the failures in a row of a loop, and says how long to pause after each."""

    def __init__(self, backoff: Backoff, timeout_s: float | None = None) -> None:
        """`timeout_s`: the longest outage to wait for; None means without a limit."""
        self._backoff = backoff
        self._timeout_s = timeout_s
        self._failures = 0
        self._since = 0.0

    def end(self) -> None:
        """Reset after a success."""
        self._failures = 0

    def next_pause_s(self, error: BaseException) -> float:
        """Raises:
        BrokerUnavailable: the outage is longer than the timeout, or waiting cannot help.
        """
        now = time.monotonic()
        if not self._failures:
            self._since = now
        self._failures += 1
        if self._timeout_s is not None:
            if isinstance(error, AuthenticationError):
                raise BrokerUnavailable(f"Redis refuses the user or password: {error}") from error
            if now - self._since > self._timeout_s:
                raise BrokerUnavailable(
                    f"Redis has been away for {self._timeout_s:g} s: {error}; the job goes on, "
                    "stream it again from your cursor"
                ) from error
        return self._backoff.pause_s(self._failures)


@dataclass(frozen=True, slots=True)
class Loss:
    setting: str
    harm: str
    remedy: str

    def describe(self, where: str = "") -> str:
        """`where`: which server, with a space before it."""
        return f"{self.setting}{where}: {self.harm}"


def loss_of_eviction(policy: str) -> Loss | None:
    """Of Redis' maxmemory-policy."""
    if policy == "noeviction":
        return None
    return Loss(
        f"maxmemory-policy is {policy}",
        "a full Redis throws jobs and tokens away",
        "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
    )


#: Where Redis' appendonly is no.
NO_LOG = Loss(
    "appendonly is no",
    "a restart of Redis loses jobs and tokens",
    "CONFIG SET appendonly yes, and in redis.conf",
)
