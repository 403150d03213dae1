"""What the runners have in common: commands in, JSON out.

    PEER_REDIS_URL=... python -m benchmarks.peers.with_taskiq COMMAND [NUMBER]

They need nothing of this project but this package, and its `redis` may be of any age.
"""

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any

import redis

URL = os.environ.get("PEER_REDIS_URL", "redis://127.0.0.1:6379/0")

SLEEP_S = 5.0
#: Where `sleeping` notes the numbers of jobs: a set, and a sorted set with the times.
STARTED = "bench:started"
SLEPT = "bench:slept"
_WARM_UP = 100
#: Submits in flight at once, where the queue's client is asyncio and has no bulk call.
_CONCURRENT_SUBMITS = 100
_POLL_S = 0.5
_PAGE = 500


class Peer(ABC):
    """Coroutines of queues whose client is blocking block: nothing else runs in this process."""

    packages: tuple[str, ...]
    """whose versions matter"""
    results: str
    """a pattern of the keys that hold results"""

    @abstractmethod
    def worker(self, slots: int | None) -> list[str]:
        """The command of one worker process; `slots`: jobs at once, or what suits no-op jobs."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        yield

    @abstractmethod
    async def enqueue(self, jobs: int) -> None:
        """Jobs that return the time."""

    @abstractmethod
    async def enqueue_sleeper(self, number: int) -> None:
        """A job that calls `sleeping(number)`."""

    @abstractmethod
    async def round_trip(self) -> None:
        """One job, until its result is here."""

    @abstractmethod
    def finish_times(self, client: Any, keys: list[bytes]) -> list[float]:
        """Unix seconds, from the keys of results."""


def main(peer: Peer) -> None:
    command, number = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if command == "worker":
        arguments = peer.worker(number or None)
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - our own arguments
    elif command == "version":
        answer: Any = {name: version(name) for name in peer.packages}
    elif command == "finish_times":
        answer = _wait_for_results(peer, number)
    else:
        answer = asyncio.run(_carry_out(peer, command, number))
    print(json.dumps(answer))


async def _carry_out(peer: Peer, command: str, number: int) -> Any:
    async with peer.connected():
        match command:
            case "submit":
                await peer.enqueue(_WARM_UP)
                return await _seconds(peer.enqueue(number))
            case "enqueue":
                return await peer.enqueue(number)
            case "latencies":
                return [await _seconds(peer.round_trip()) for _ in range(number)]
            case "sleepers":
                for sleeper in range(number):
                    await peer.enqueue_sleeper(sleeper)
                return None
            case _:
                raise ValueError(f"no such command: {command}")


async def _seconds(action: Awaitable[None]) -> float:
    began = time.perf_counter()
    await action
    return time.perf_counter() - began


async def concurrently(jobs: int, submit: Callable[[], Awaitable[Any]]) -> None:
    for start in range(0, jobs, _CONCURRENT_SUBMITS):
        count = min(_CONCURRENT_SUBMITS, jobs - start)
        await asyncio.gather(*(submit() for _ in range(count)))


@contextmanager
def sleeping(number: int) -> Iterator[float]:
    """Around the sleep of a job that a SIGKILL may end; gives its seconds."""
    with redis.Redis.from_url(URL) as client:
        client.sadd(STARTED, number)
        yield SLEEP_S
        client.zadd(SLEPT, {str(number): time.time()}, nx=True)


def noop() -> float:
    return time.time()


def sleep(number: int) -> None:
    with sleeping(number) as seconds:
        time.sleep(seconds)


def _wait_for_results(peer: Peer, jobs: int) -> list[float]:
    with redis.Redis.from_url(URL) as client:
        while len(keys := list(client.scan_iter(peer.results, count=1000))) < jobs:
            time.sleep(_POLL_S)
        pages = [keys[start : start + _PAGE] for start in range(0, len(keys), _PAGE)]
        return [seconds for page in pages for seconds in peer.finish_times(client, page)]
