"""Workers with the null engine, which echoes the prompt: what they answer, and what they leave."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from rose.protocol import GROUP, Partition
from rose_cli.local.services import WorkerProcess
from rose_producer import Job

StartWorker = Callable[..., WorkerProcess]

#: Slow enough to do something to a job while it runs.
SLOW = {"min_step_s": 0.02}


@contextmanager
def serving(name: str, url: str, *, ready: bool = True, **settings: Any) -> Iterator[WorkerProcess]:
    """A worker that is ready, if not told otherwise, and whose leases lapse soon. `settings`: as
    `WorkerProcess` takes them."""
    given = {"engine": "null", "lease_s": 1, "reclaim_interval_s": 0.1, **settings}
    with WorkerProcess(name, url, **given) as worker:
        if ready:
            worker.wait_ready()
        yield worker


def echoed(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What the null engine answers: the prompt's bytes or token ids, again and again."""
    return tuple(prompt[i % len(prompt)] for i in range(count))


def echoed_text(prompt: str | Sequence[int], count: int) -> str:
    """The same as text."""
    ids = prompt.encode() if isinstance(prompt, str) else prompt
    return "".join(f"{token_id} " for token_id in echoed(ids, count))


def digest(text: str, width: int = 8) -> list[float]:
    """The vector that the null engine gives a text."""
    return [byte / 256 for byte in hashlib.sha256(text.encode()).digest()[:width]]


def running(job: Job, tokens: int = 1) -> bool:
    status = job.status()
    return status.status == "running" and status.tokens >= tokens


def has_no_jobs(raw: redis.Redis, partition: Partition) -> bool:
    return all(
        raw.xlen(stream) == 0 and raw.xpending(stream, GROUP)["pending"] == 0
        for stream in partition.all_jobs
    )
