"""The jobs that answer one request, and how it is recorded: follow, cancel, delete them."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from rose.errors import BrokerUnavailable, MalformedMessage
from rose.protocol import TERMINAL_STATUSES, Event, TokenEvent
from rose_gateway.access.authentication import current_request
from rose_gateway.metrics import Metrics
from rose_gateway.pacing import LoopPacer
from rose_gateway.storage.conversations import Link, check_size
from rose_producer import AsyncJob, JobRecord

EndpointKind = Literal[
    "response", "chat", "completion", "message", "embedding", "embed", "rerank", "score"
]

#: What Redis keeps of one: rose.protocol.status has the same limit.

_ENDPOINT_KINDS = get_args(EndpointKind)
_VERSION = 1


def fields_of(record: Any) -> dict[str, Any]:
    """Of a data class, by name, and not copied: conversations are long."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


@dataclass(frozen=True, slots=True)
class Record:
    """How a job was requested.

    `request` holds what its endpoint needs to show the job again: JSON values only.
    """

    endpoint: EndpointKind
    """the endpoint; stored, and shown by the API, under this name"""
    model: str
    """as the request named it"""
    body_sha256: str = ""
    """of the request's body, in hexadecimal: the same Idempotency-Key must bring the same body"""
    request: dict[str, Any] = field(default_factory=dict)
    choices: int = 1
    """n: jobs ID, ID.1, ID.2, ... answer one request"""
    store: bool = True
    """False: it cannot be retrieved, and is deleted once it has been delivered"""
    background: bool = False
    """it goes on although nobody listens"""
    link: Link | None = None
    """of a response: the one that it goes on from"""
    warnings: Sequence[dict[str, Any]] = ()
    """what has no effect, as answers show it"""

    def encode(self) -> bytes:
        """Raises: JobTooLarge"""
        versioned = {"v": _VERSION, **fields_of(self)}
        raw = json.dumps(versioned, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        encoded = raw.encode("utf-8", "surrogatepass")
        check_size(len(encoded))
        return encoded

    @classmethod
    def decode(cls, raw: bytes) -> Record:
        """Raises: MalformedMessage: it was not written by `encode`."""
        try:
            given = json.loads(raw.decode("utf-8", "surrogatepass"))
            if given.pop("v") != _VERSION or given["endpoint"] not in _ENDPOINT_KINDS:
                raise MalformedMessage("the job's record is of another version of the gateway")
            if (link := given.pop("link")) is not None:
                given["link"] = Link(*link)
            given["warnings"] = tuple(given.get("warnings", ()))
            return cls(**given)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise MalformedMessage("the job's record is not what the gateway writes") from None


log = logging.getLogger("rose.gateway")

#: Events that were ready together, each with the number of its choice.
Burst = list[tuple[int, Event]]

#: Events that are rendered at a time, half a millisecond's: plain ones, and those with twenty
#: log-probabilities, which take 8 kB. Those who replay long answers take turns, so they hold up no
#: other stream, and what a slow reader does not take is not rendered.
_MAX_BURST = 64
_MAX_DETAILED_BURST = 16

OnEnd = Callable[[Sequence[str]], Awaitable[None]]
"""Called with the ids of jobs that were seen to end."""


class JobGroup:
    """The jobs that answer one request, and how the request read."""

    def __init__(
        self,
        jobs: Sequence[AsyncJob],
        state: JobRecord,
        record: Record | None,
        *,
        repeated: bool = False,
        on_end: OnEnd,
        on_delete: Callable[[], Awaitable[None]] | None = None,
        metrics: Metrics,
        pacer: LoopPacer,
    ) -> None:
        """`pacer`: of all replays, for what is ready at once."""
        self.jobs = tuple(jobs)
        self.id = self.jobs[0].id
        self.record = record
        """None: somebody else has enqueued it"""
        self.state = state
        """of the first job, as it was when it was read"""
        self.repeated = repeated
        """an earlier request with the same Idempotency-Key has made it"""
        self._on_end = on_end
        self._on_delete = on_delete
        self._metrics = metrics
        self._pacer = pacer

    @property
    def own_record(self) -> Record:
        """`record`, of jobs that came through here."""
        assert self.record is not None  # noqa: S101 - they were requested here, or of a known kind
        return self.record

    @property
    def created_at(self) -> int:
        """Unix seconds; the same whoever asks and whenever."""
        return (self.state.enqueued_ms or 0) // 1000

    @property
    def status(self) -> str:
        """Of the first job: queued, running, finished, failed or cancelled."""
        return self.state.status

    async def refresh(self) -> None:
        """Read the first job's state again. Raises: JobNotFound, BrokerUnavailable"""
        self.state = await self.jobs[0].record()

    def first_choice(self) -> JobGroup:
        """The first job alone, as if the request had asked for one choice."""
        alone = copy(self)
        alone.jobs = self.jobs[:1]
        return alone

    async def bursts(
        self, cursors: Sequence[int] = (), *, pause_s: float = 0.0
    ) -> AsyncGenerator[Burst, None]:
        """All events of all choices, a token each; some come together that are ready together.

        `cursors`: of each choice, the tokens that the reader has; none if not given. Every choice
        ends with its terminal event. Close it: `async with aclosing(group.bursts()) as bursts`.
        `pause_s`: for a reader without haste. Between two looks so much time passes, and what comes
        meanwhile costs as much as one event.

        Raises:
            JobNotFound, InvalidCursor, BrokerUnavailable
        """
        is_replay = self.status in TERMINAL_STATUSES
        if is_replay:  # what is decoded first takes some milliseconds, too
            await self._pacer.wait()
        cursors = list(cursors) or [0] * len(self.jobs)
        streams = [
            _of_choice(number, job, cursor, self._pacer, is_replay=is_replay)
            for number, (job, cursor) in enumerate(zip(self.jobs, cursors, strict=True))
        ]
        ended: list[str] = []
        context = current_request()
        try:
            async with aclosing(streams[0] if len(streams) == 1 else _merged(streams)) as bursts:
                async for burst in bursts:
                    read_at = time.perf_counter()
                    ended += [self.jobs[number].id for number, event in burst if event.is_terminal]
                    yield burst
                    if context.streaming:  # whoever asks for the next burst has written this one
                        self._metrics.added_latency.observe(time.perf_counter() - read_at)
                    self._metrics.events.value += len(burst)
                    if pause_s and len(ended) < len(self.jobs):
                        await asyncio.sleep(pause_s)
        finally:
            if ended:
                await self._report_ended(ended)

    async def cancel(self) -> bool:
        """False when all jobs had ended before. Raises: JobNotFound, BrokerUnavailable"""
        return any(await asyncio.gather(*(job.cancel() for job in self.jobs)))

    async def delete(self) -> None:
        """Ended jobs go at once, others are cancelled and go at their end.

        Raises: BrokerUnavailable
        """
        await asyncio.gather(*(job.delete() for job in self.jobs))
        if self._on_delete is not None:
            await self._on_delete()
        await self._report_ended([job.id for job in self.jobs])

    async def _report_ended(self, ended: Sequence[str]) -> None:
        try:
            await self._on_end(ended)
        except BrokerUnavailable as error:
            # They count as running until the key's limit is reached; then they are looked up.
            log.warning("cannot note that jobs have ended: %s", error)


async def _of_choice(
    number: int, job: AsyncJob, cursor: int, pacer: LoopPacer, *, is_replay: bool
) -> AsyncGenerator[Burst, None]:
    async with aclosing(job.bursts(cursor)) as bursts:
        async for events in bursts:
            burst = _in_single_tokens(number, events)
            has_details = any(isinstance(event, TokenEvent) and event.logprobs for event in events)
            most = _MAX_DETAILED_BURST if has_details else _MAX_BURST
            for start in range(0, len(burst), most):
                if is_replay or len(burst) >= most:  # its end may show all of it once more
                    await pacer.wait()
                yield burst[start : start + most]


def _in_single_tokens(number: int, events: Sequence[Event]) -> Burst:
    """Events with one token each: what is made of a log does not depend on how many tokens its
    workers wrote at a time."""
    burst: Burst = []
    for event in events:
        singles = event.single_tokens() if isinstance(event, TokenEvent) else (event,)
        burst += [(number, single) for single in singles]
    return burst


async def _merged(streams: Sequence[AsyncGenerator[Burst, None]]) -> AsyncGenerator[Burst, None]:
    """The bursts of all, as they come. Each stream is at most one burst ahead of the reader."""
    waiting = {asyncio.ensure_future(_next(stream)): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            together: Burst = []
            for task in done:
                stream = waiting.pop(task)
                if (burst := task.result()) is not None:
                    together += burst
                    waiting[asyncio.ensure_future(_next(stream))] = stream
            if together:
                yield together
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


async def _next(stream: AsyncGenerator[Burst, None]) -> Burst | None:
    return await anext(stream, None)
