"""What a key may use: requests, tokens and reads a minute, and jobs at once. Redis has the counts.

A job counts from its submission until a gateway sees its end. Gateways die; so where the limit of
jobs is reached, the jobs that count are looked up, and those that have ended are taken out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rose import transport
from rose.protocol import TERMINAL_STATUSES
from rose.protocol.calls import Call
from rose_gateway.access.authentication import Caller, current_request
from rose_gateway.errors import ApiError
from rose_gateway.metrics import Metrics
from rose_gateway.scripts import own_script


@dataclass(frozen=True, slots=True)
class QueuedJob:
    queue: str
    job_id: str

    @property
    def member(self) -> str:
        """In a set of jobs; no queue's name has a colon."""
        return f"{self.queue}:{self.job_id}"

    @classmethod
    def of(cls, member: str) -> QueuedJob:
        queue, _, job_id = member.partition(":")
        return cls(queue, job_id)


#: A job that was counted so lately may not be in the queue yet.
_UNDER_WAY_S = 60
#: A key's jobs are looked up no more often than this.
_RECONCILE_S = 2.0
#: Jobs that are looked up at a time.
_PAGE_SIZE = 500


StatusLookup = Callable[[QueuedJob], Awaitable[str | None]]
"""The status of a job; None where there is no such job."""


class Limits:
    """Belongs to one event loop."""

    def __init__(
        self, redis: transport.AsyncRedisClient, metrics: Metrics, status_of: StatusLookup
    ) -> None:
        self._redis = redis
        self._metrics = metrics
        self._status_of = status_of
        self._reconciled_at: dict[str, float] = {}

    async def take(self, caller: Caller, tokens: int = 0, jobs: Sequence[QueuedJob] = ()) -> None:
        """Count a request that makes something: these jobs, of so many estimated tokens, a file or
        a batch.

        Raises:
            ApiError: 429: nothing was counted.
            BrokerUnavailable
        """
        limits = caller.limits
        if not (limits.requests_per_minute or limits.tokens_per_minute or limits.max_jobs):
            return
        refused = await self._count(caller, tokens, jobs)
        if refused is not None and refused.code == "max_jobs" and await self._reconcile(caller):
            refused = await self._count(caller, tokens, jobs)
        if refused is not None:
            raise refused

    async def take_read(self, caller: Caller) -> None:
        """Count a request that makes nothing. Raises: ApiError: 429; BrokerUnavailable"""
        if caller.limits.reads_per_minute:
            refused = await self._count(caller, 0, (), requests=0, reads=1)
            if refused is not None:
                raise refused

    async def give_back(self, caller_id: str, jobs: Iterable[QueuedJob]) -> None:
        """These jobs do not run any more. Raises: BrokerUnavailable"""
        members = [job.member for job in jobs]
        if members:
            with transport.broker_errors():
                await self._redis.execute("ZREM", _jobs(caller_id), *members)

    async def _count(
        self,
        caller: Caller,
        tokens: int,
        jobs: Sequence[QueuedJob],
        *,
        requests: int = 1,
        reads: int = 0,
    ) -> ApiError | None:
        limits = caller.limits
        args: list[str | bytes | int] = [
            limits.requests_per_minute or 0,
            limits.tokens_per_minute or 0,
            limits.reads_per_minute or 0,
            limits.max_jobs or 0,
            *(requests, tokens, reads),
            *(job.member for job in jobs),
        ]
        keys = [_rate(caller.key_id), _jobs(caller.key_id)]
        with transport.broker_errors():
            reply = await self._redis.run(Call(own_script(__package__, "limit"), keys, args))
        refused, wait_ms, requests_left, requests_ms, tokens_left, tokens_ms = reply
        counts = {}
        if limits.requests_per_minute:
            counts["requests"] = (limits.requests_per_minute, requests_left, requests_ms)
        if limits.tokens_per_minute:
            counts["tokens"] = (limits.tokens_per_minute, tokens_left, tokens_ms)
        context = current_request()
        for name, (limit, left, reset_ms) in counts.items():
            context.headers |= _rate_headers(
                name, limit, max(0, left), reset_ms, anthropic=context.anthropic
            )
        return self._refusal(caller, refused.decode(), wait_ms, tokens, len(jobs))

    def _refusal(
        self, caller: Caller, refused: str, wait_ms: int, tokens: int, jobs: int
    ) -> ApiError | None:
        if not refused:
            return None
        limits = caller.limits
        name, limit, requested = {
            "requests": ("requests a minute", limits.requests_per_minute, 1),
            "tokens": ("tokens a minute", limits.tokens_per_minute, tokens),
            "reads": ("reads a minute", limits.reads_per_minute, 1),
            "jobs": ("jobs at once", limits.max_jobs, jobs),
        }[refused]
        self._metrics.limit_hit(refused)
        never = limit is not None and requested > limit
        return ApiError(
            429,
            f"this API key may use {limit} {name}, and the request asks for {requested}: "
            + ("ask for less" if never else "try again later"),
            type="rate_limit_error" if refused == "jobs" else refused,
            code="max_jobs" if refused == "jobs" else "rate_limit_exceeded",
            retry_after_s=None if never else max(0.05, wait_ms / 1000),
        )

    async def _reconcile(self, caller: Caller) -> bool:
        """Take out the jobs that have ended. Returns whether there were any."""
        now = time.monotonic()
        if now - self._reconciled_at.get(caller.key_id, float("-inf")) < _RECONCILE_S:
            return False
        self._reconciled_at[caller.key_id] = now
        with transport.broker_errors():
            (seconds, _), flat = await self._redis.exchange(
                [("TIME",), ("ZRANGE", _jobs(caller.key_id), 0, -1, "WITHSCORES")]
            )
        newest_ms = (int(seconds) - _UNDER_WAY_S) * 1000
        members = zip(flat[::2], flat[1::2], strict=True)
        counted = [(QueuedJob.of(member.decode()), float(since)) for member, since in members]
        gone: list[QueuedJob] = []
        for page in _pages(counted):
            statuses = await asyncio.gather(*(self._status_of(job) for job, _ in page))
            gone += (
                job
                for (job, since_ms), status in zip(page, statuses, strict=True)
                if status in TERMINAL_STATUSES or (status is None and since_ms < newest_ms)
            )
        await self.give_back(caller.key_id, gone)
        return bool(gone)


def _pages(jobs: list[tuple[QueuedJob, float]]) -> Iterator[list[tuple[QueuedJob, float]]]:
    for start in range(0, len(jobs), _PAGE_SIZE):
        yield jobs[start : start + _PAGE_SIZE]


def _rate(key_id: str) -> str:
    return f"rose:gateway:limit:{{{key_id or 'open'}}}:rate"


def _jobs(key_id: str) -> str:
    return f"rose:gateway:limit:{{{key_id or 'open'}}}:jobs"


def _rate_headers(
    name: str, limit: int, left: int, reset_ms: int, *, anthropic: bool
) -> dict[str, str]:
    if not anthropic:
        return {
            f"x-ratelimit-limit-{name}": str(limit),
            f"x-ratelimit-remaining-{name}": str(left),
            f"x-ratelimit-reset-{name}": _duration(reset_ms),
        }
    reset = datetime.now(UTC) + timedelta(milliseconds=reset_ms)
    return {
        f"anthropic-ratelimit-{name}-limit": str(limit),
        f"anthropic-ratelimit-{name}-remaining": str(left),
        f"anthropic-ratelimit-{name}-reset": f"{reset:%Y-%m-%dT%H:%M:%SZ}",
    }


def _duration(ms: int) -> str:
    """As OpenAI writes it: 6m0s, 1s, 20ms."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, seconds = divmod(ms / 1000, 60)
    text = f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(minutes)}m{text}" if minutes else text
