"""What the runners have in common: commands in, JSON out.

    PEER_REDIS_URL=... python -m benchmarks.peers.with_taskiq COMMAND [NUMBER]

They need nothing of this project but this package, and its `redis` may be of any age.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Protocol

import redis

URL = os.environ.get("PEER_REDIS_URL", "redis://127.0.0.1:6379/0")

#: Submits in flight at once, where the queue's client is asyncio and has no bulk call.
AT_ONCE = 100
WARM_UP = 100
SLEEP_S = 5.0
#: Where `sleeping` notes the numbers of jobs: a set, and a sorted set with the times.
STARTED = "bench:started"
SLEPT = "bench:slept"
_POLL_S = 0.5
_PAGE = 500


class Peer(Protocol):
    @property
    def packages(self) -> tuple[str, ...]:
        """Whose versions matter."""

    def worker(self, slots: int | None) -> list[str]:
        """The command of one worker process; `slots`: jobs at once, or what suits no-op jobs."""

    def submit(self, jobs: int) -> float:
        """Seconds for `jobs` no-op jobs; some more, before, warm it up."""

    def enqueue(self, jobs: int) -> None: ...

    def latencies(self, jobs: int) -> list[float]:
        """Seconds from submit to result, one job after another."""

    def finish_times(self, jobs: int) -> list[float]:
        """Waits for all; Unix seconds."""

    def sleepers(self, jobs: int) -> None:
        """Enqueue jobs that call `sleeping` with numbers from 0."""


def main(peer: Peer) -> None:
    command, number = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if command == "worker":
        arguments = peer.worker(number or None)
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - our own arguments
    answers: dict[str, Callable[[], Any]] = {
        "version": lambda: {name: version(name) for name in peer.packages},
        "submit": lambda: peer.submit(number),
        "enqueue": lambda: peer.enqueue(number),
        "latencies": lambda: peer.latencies(number),
        "finish_times": lambda: peer.finish_times(number),
        "sleepers": lambda: peer.sleepers(number),
    }
    print(json.dumps(answers[command]()))


def timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@contextmanager
def sleeping(number: int) -> Iterator[float]:
    """Around the sleep of a job that a SIGKILL may end; gives its seconds."""
    with redis.Redis.from_url(URL) as client:
        client.sadd(STARTED, number)
        yield SLEEP_S
        client.zadd(SLEPT, {str(number): time.time()}, nx=True)


def wait_for_results(
    jobs: int, pattern: str, read: Callable[[Any, list[bytes]], list[float]]
) -> list[float]:
    """The times that `read` finds in the keys of results, once there are `jobs` of them."""
    with redis.Redis.from_url(URL) as client:
        while len(keys := list(client.scan_iter(pattern, count=1000))) < jobs:
            time.sleep(_POLL_S)
        pages = [keys[start : start + _PAGE] for start in range(0, len(keys), _PAGE)]
        return [at for page in pages for at in read(client, page)]
