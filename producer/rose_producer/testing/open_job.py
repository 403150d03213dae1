"""A job in the hands of a test, which writes its answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from rose.errors import DeadlineExceeded, InvalidParameter, RoseError
from rose.protocol import (
    GROUP,
    CancelledEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    JobEntry,
    JobSpec,
    Partition,
    TokenEvent,
    calls,
    encode_event,
)
from rose.protocol.calls import Lease, Taken
from rose.transport import AsyncRedisClient
from rose_producer.testing.answers import Answer

#: How long what has ended is kept.
TTL_S = 3600

_workers = itertools.count(1)


def new_worker() -> str:
    return f"fake-{next(_workers)}"


@dataclass
class Writer:
    """Writes the answer of one job into its log, as a worker does. It holds no lease that lapses:
    only `killed` gives the job to another worker."""

    redis: AsyncRedisClient
    partition: Partition
    spec: JobSpec
    entry: JobEntry
    taken: Taken
    position: int = 0
    """tokens in its log"""
    ended: bool = False

    @property
    def _lease(self) -> Lease:
        return Lease(self.partition, *self.entry, self.taken.take_id)

    async def say(self, *tokens: str) -> bool:
        """False: the job has ended, since it was cancelled, is late, or has as many tokens as it
        asked for."""
        if await self._must_end():
            return False
        most = self.spec.sampling.max_new_tokens
        events = [
            TokenEvent(index=place, token_ids=(place,), text=text)
            for place, text in enumerate(tokens, self.position)
            if place < most
        ]
        if events:
            await self._append(events)
        if self.position >= most:
            await self.end("length")
        return not self.ended

    async def end(self, reason: Literal["eos", "stop", "length"]) -> None:
        if not await self._must_end():
            asked = self.spec.token_estimate - self.spec.sampling.max_new_tokens
            end = FinishedEvent(index=self.position, reason=reason, prompt_tokens=asked)
            await self._append([], end)

    async def fail(self, error: RoseError) -> None:
        if not await self._must_end():
            await self._append([], FailedEvent.of(error, self.position))

    async def killed(self) -> None:
        """Its worker is gone, and another one has taken the job."""
        thief = new_worker()
        stream, entry_id = self.entry.entry
        await self.redis.execute("XCLAIM", stream, GROUP, thief, 0, entry_id)
        take = calls.Take(*self.entry)
        call = calls.take(self.partition, [take], thief, ttl_s=TTL_S, mode="alone")
        (reply,) = await self.redis.run(call)
        taken = calls.taken(reply, take.take_id)
        if isinstance(taken, Taken):
            self.taken = taken
        else:  # cancelled or deleted meanwhile
            self.ended = True

    async def _must_end(self) -> bool:
        """Whether it has ended, now or before."""
        if self.ended:
            return True
        state = self.partition.state(self.spec.id)
        (cancelled,) = await self.redis.execute("HMGET", state, "cancel")
        if cancelled == b"1":
            await self._append([], CancelledEvent(index=self.position))
        elif self.taken.deadline_ms and self.taken.seconds_until(self.taken.deadline_ms) <= 0:
            late = DeadlineExceeded("its deadline has passed")
            await self._append([], FailedEvent.of(late, self.position))
        return self.ended

    async def _append(self, events: list[TokenEvent], end: Event | None = None) -> None:
        counts = [len(event.token_ids) for event in events]
        encoded = [encode_event(event) for event in events]
        item = calls.Append(self._lease, self.position, counts, encoded, end)
        reply = await self.redis.run(calls.append(self.partition, [item], ttl_s=TTL_S))
        (outcome,) = calls.outcomes(reply, 1)
        self.position += sum(counts)
        self.ended = end is not None or outcome in ("FENCED", "GAP")
        if outcome == "CANCEL" and not self.ended:
            await self._append([], CancelledEvent(index=self.position))


class OpenJob:
    """What `FakeQueue.take` returns. Its methods block, and may be called from any thread."""

    def __init__(self, writer: Writer, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._writer = writer
        self._run = run

    @property
    def spec(self) -> JobSpec:
        """The job as it was submitted."""
        return self._writer.spec

    @property
    def ended(self) -> bool:
        """As this test has seen it: a job that was cancelled ends with the next call."""
        return self._writer.ended

    def say(self, *tokens: str) -> bool:
        """Write tokens. False: the job has ended: it was cancelled, its deadline has passed, or it
        has as many tokens as it asked for."""
        return bool(self._run(self._writer.say(*tokens)))

    def end(self, reason: Literal["eos", "stop", "length"] = "eos") -> None:
        self._run(self._writer.end(reason))

    def fail(self, error: RoseError) -> None:
        """`InvalidParameter` and `PromptTooLong` are the caller's fault, `JobFailed` is not."""
        if not isinstance(error, RoseError):
            raise InvalidParameter(f"error: must be a RoseError (got {error!r:.100})")
        self._run(self._writer.fail(error))

    def kill_worker(self) -> None:
        """Its worker dies without a word, and another one goes on where it was."""
        self._run(self._writer.killed())


async def play(writer: Writer, answer: Answer) -> None:
    tokens, kills = answer.tokens, {*answer.killed_after}
    start = 0
    while start < len(tokens):
        if start in kills:
            await writer.killed()
        # At once, up to the next thing that happens in between.
        later = (place for place in sorted(kills) if place > start)
        end = start + 1 if answer.pause_s else min(next(later, len(tokens)), len(tokens))
        await asyncio.sleep(answer.pause_s)
        if not await writer.say(*tokens[start:end]):
            return
        start = end
    if len(tokens) in kills:
        await writer.killed()
    if answer.error is not None:
        await writer.fail(answer.error)
    else:
        await writer.end(answer.reason)
