"""A request's jobs as an event stream or as one answer, as its endpoint renders their events."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol, runtime_checkable

from rose.protocol import Event, FinishedEvent, TokenEvent
from rose_gateway.answers.positions import Positions
from rose_gateway.jobs.job_failure import failure
from rose_gateway.jobs.jobs import Burst, JobGroup
from rose_gateway.json_text import compact

_ANSWERS = (TokenEvent, FinishedEvent)


class Chunks(Protocol):
    """The data of a stream's events. A pure function of the record and the log."""

    def begin(self) -> str | None: ...

    def feed(self, choice: int, event: TokenEvent | FinishedEvent) -> str | None: ...

    def ended(self, choice: int, event: Event) -> None: ...

    def usage_chunk(self) -> str | None: ...


@runtime_checkable
class Collector(Protocol):
    """One answer of all events."""

    def feed(self, choice: int, event: TokenEvent | FinishedEvent) -> None: ...

    def ended(self, choice: int, event: Event) -> None: ...

    def answer(self) -> dict[str, Any]: ...


async def streamed(
    group: JobGroup,
    chunks: Chunks,
    after: Positions | None = None,
    *,
    with_ids: bool = True,
    held: bool = False,
) -> AsyncGenerator[bytes, None]:
    """The events of a stream, all or those after a position. What is ready together comes together.

    A failed choice ends it with an error that OpenAI's SDKs raise. `with_ids`: events have `id:`
    lines, by which they can be resumed. `held`: nothing comes before the first event of a job.

    Raises:
        ApiError: `held`, and a choice failed before anything came.
        JobNotFound, BrokerUnavailable
    """
    positions = after or Positions(len(group.jobs))
    event = _event_with_id if with_ids else _event
    opening = b""
    if after is None and (first := chunks.begin()) is not None:
        opening = event(positions, first)
    if opening and not held:
        yield opening
        opening = b""
    if not positions.all_usage_sent:
        async with aclosing(group.bursts()) as bursts:
            async for burst in bursts:
                if held:
                    _check_begun(group, burst)
                    held = False
                lines, failed = _lines(group, chunks, positions, burst, event)
                if opening or lines:
                    yield opening + b"".join(lines)
                    opening = b""
                if failed:
                    return
        if (usage := chunks.usage_chunk()) is not None:
            positions.usage_sent()
            yield event(positions, usage)
    positions.done()
    yield event(positions, "[DONE]")


def _check_begun(group: JobGroup, burst: Burst) -> None:
    """Raises: ApiError: the first event of all says that its job has failed."""
    choice, event = burst[0]
    if not isinstance(event, _ANSWERS):
        raise failure(event, group, choice)


def _lines(
    group: JobGroup,
    chunks: Chunks,
    positions: Positions,
    burst: list[tuple[int, Event]],
    line: Callable[[Positions, str], bytes],
) -> tuple[list[bytes], bool]:
    """The events of a burst, and whether one of them is a failure."""
    lines: list[bytes] = []
    for choice, event in burst:
        is_news = positions.passes(choice, event)
        if event.is_terminal:
            chunks.ended(choice, event)
        if not isinstance(event, _ANSWERS):
            if is_news:
                error = failure(event, group, choice)
                positions.done()
                lines.append(line(positions, compact(error.body())))
            return lines, True
        data = chunks.feed(choice, event)
        if is_news and data is not None:
            lines.append(line(positions, data))
    return lines, False


async def collected(
    group: JobGroup, collector: Collector, *, pause_s: float = 0.0
) -> dict[str, Any]:
    """The whole answer. `pause_s`: as for `JobGroup.bursts`.

    Raises:
        ApiError: a choice failed.
        JobNotFound, BrokerUnavailable
    """
    async with aclosing(group.bursts(pause_s=pause_s)) as bursts:
        async for burst in bursts:
            for choice, event in burst:
                if event.is_terminal:
                    collector.ended(choice, event)
                if not isinstance(event, _ANSWERS):
                    raise failure(event, group, choice)
                collector.feed(choice, event)
    return collector.answer()


def _event_with_id(positions: Positions, data: str) -> bytes:
    return f"id: {positions}\ndata: {data}\n\n".encode()


def _event(positions: Positions, data: str) -> bytes:  # noqa: ARG001 - in the place of the other
    return f"data: {data}\n\n".encode()
