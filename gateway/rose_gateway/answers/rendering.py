"""A request's jobs as an event stream or as one answer, as its endpoint renders their events."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pydantic import BaseModel

from rose.errors import InvalidCursor
from rose.protocol import Event, FinishedEvent, TokenEvent
from rose_gateway.jobs.job_answer import failure
from rose_gateway.jobs.job_client import Burst, JobGroup
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import compact
from rose_gateway.requests.warnings import not_followed


class PromptTokensDetails(BaseModel):
    cached_tokens: int = 0
    """of the prompt, found in the worker's prefix cache"""
    audio_tokens: int = 0


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


_PROMPT_DETAILS = PromptTokensDetails().model_dump()
_COMPLETION_DETAILS = CompletionTokensDetails().model_dump()


class UsageCounter:
    """Adds up the choices of a request. Those of one prompt read it once."""

    def __init__(self, choices_of_a_prompt: int) -> None:
        self._choices_of_a_prompt = choices_of_a_prompt
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion = self._thought = 0

    def ended(self, choice: int, event: Event) -> None:
        """`event` is the last one of its choice."""
        self._completion += event.index
        if isinstance(event, FinishedEvent):
            prompt = choice // self._choices_of_a_prompt
            cached = event.cached_tokens or 0
            known, least_cached = self._prompts.get(prompt, (event.prompt_tokens, cached))
            self._prompts[prompt] = (known, min(least_cached, cached))

    def thought(self, tokens: int) -> None:
        """Of the completion, a choice has spent so many on thoughts."""
        self._thought += tokens

    def usage(self) -> dict[str, Any]:
        """As `Usage`; made by hand, since every answer has one."""
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        cached = sum(cached for _, cached in self._prompts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion,
            "total_tokens": prompt + self._completion,
            "prompt_tokens_details": {**_PROMPT_DETAILS, "cached_tokens": cached},
            "completion_tokens_details": {
                **_COMPLETION_DETAILS,
                "reasoning_tokens": self._thought,
            },
        }


def left_out_of(event: TokenEvent | FinishedEvent) -> list[dict[str, Any]]:
    """The warning of an answer whose worker could not compile the grammar of its calls."""
    reason = event.left_out if isinstance(event, FinishedEvent) else None
    return not_followed([reason] if reason else [])


class AnswerHeader(NamedTuple):
    """Which answer it is."""

    job_ids: Sequence[str]
    """of each choice"""
    model: str
    created: int
    """Unix seconds"""
    warnings: Sequence[dict[str, Any]] = ()
    """as answers show them"""

    def fields(self, prefix: str, kind: str) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{self.job_ids[0]}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


class ChunkMaker(UsageCounter):
    """Makes the data of a stream's events, without their ids."""

    def __init__(
        self, fields: Mapping[str, Any], choices_of_a_prompt: int, *, include_usage: bool
    ) -> None:
        """`fields`: those that all chunks have."""
        super().__init__(choices_of_a_prompt)
        self._include_usage = include_usage
        self._prefix = compact(fields)[:-1] + ',"choices":['
        self._suffix = '],"usage":null}' if include_usage else "]}"

    def usage_chunk(self) -> str | None:
        """After the ends of all choices, if it was asked for."""
        if not self._include_usage:
            return None
        return f'{self._prefix}],"usage":{compact(self.usage())}}}'

    def _chunk(self, *choices: dict[str, Any], **more: Any) -> str:
        """`more`: further fields."""
        fields = f",{compact(more)[1:-1]}" if more else ""
        return self._prefix + compact(choices)[1:-1] + self._suffix.replace("}", fields + "}", 1)


_POSITION = re.compile(r"(\d{1,10})-([0-3])")

_ENDED, _USAGE_SENT, _DONE = 1, 2, 3

#: Tokens, and a rank: 1 after the end of the choice, 2 after the usage, 3 after the stream.
_Position = tuple[int, int]


class Positions:
    """Of each choice: what the reader has."""

    def __init__(self, choices: int) -> None:
        self._positions: list[_Position] = [(0, 0)] * choices

    def __str__(self) -> str:
        return ",".join([f"{tokens}-{rank}" for tokens, rank in self._positions])

    @property
    def all_ended(self) -> bool:
        return all(rank >= _ENDED for _, rank in self._positions)

    @property
    def all_usage_sent(self) -> bool:
        return all(rank >= _USAGE_SENT for _, rank in self._positions)

    @property
    def all_done(self) -> bool:
        return all(rank >= _DONE for _, rank in self._positions)

    def passes(self, choice: int, event: Event) -> bool:
        """Moves past the event, unless the reader has it.

        A failover may have forgotten tokens that the reader has. They come again, or the job is
        cancelled or fails before.

        Raises:
            InvalidCursor: the answer is another than the one that the reader has a part of.
        """
        tokens, rank = self._positions[choice]
        if rank >= _ENDED or (event.cursor <= tokens and not event.is_terminal):
            return False
        if event.index < tokens and isinstance(event, FinishedEvent):
            raise self._not_there(tokens, f"the answer ends after {event.index} tokens")
        if event.index < tokens and not event.is_terminal:
            raise self._not_there(
                tokens,
                f"it lies inside of tokens {event.index} to {event.cursor - 1}, which an older "
                "worker wrote together",
            )
        reached = max(tokens, event.cursor)
        self._positions[choice] = (reached, _ENDED if event.is_terminal else 0)
        return True

    def usage_sent(self) -> None:
        """The usage was delivered."""
        self._reach(_USAGE_SENT)

    def done(self) -> None:
        """Nothing follows."""
        self._reach(_DONE)

    def _not_there(self, tokens: int, what: str) -> InvalidCursor:
        return InvalidCursor(
            f"last_event_id: {tokens} tokens of a choice cannot be gone on from: {what}: follow it "
            "from the beginning, without last_event_id"
        )

    def _reach(self, rank: int) -> None:
        self._positions = [(tokens, rank) for tokens, _ in self._positions]

    @classmethod
    def read(cls, text: str, choices: int, param: str = "last_event_id") -> Positions:
        """From a `Last-Event-ID`.

        Raises: BadRequest
        """
        parts = text.split(",")
        matches = [_POSITION.fullmatch(part.strip()) for part in parts]
        if len(parts) != choices or not all(matches):
            raise BadRequest(
                f"{param}: {text[:80]!r} must be the id of an event of this stream, such as "
                f"{Positions(choices)}",
                param,
            )
        positions = cls(choices)
        positions._positions = [(int(match[1]), int(match[2])) for match in matches if match]
        return positions


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
