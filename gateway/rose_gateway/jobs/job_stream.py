"""A job as a stream of the Durable Streams protocol: where a reader stands, and what follows."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rose.protocol import TERMINAL_STATUSES, Event, TokenEvent
from rose_gateway.jobs.job_group import JobGroup
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import compact

#: What a job is read as: its text, or its events. Each is a stream of its own.
View = Literal["text", "events"]

#: Characters of data after which a part ends, though the job has more.
_PART = 256 * 1024
_OFFSET = re.compile(r"([0-9]{10})(_end)?")


class Offset(NamedTuple):
    """Where a reader stands."""

    tokens: int
    """that the reader has"""
    ended: bool = False
    """it has the terminal event, too"""


@dataclass(frozen=True, slots=True)
class Part:
    """Data that follow an offset."""

    data: str
    """text, or JSON values with commas between them"""
    next: Offset
    is_all: bool
    """nothing more was there"""
    end: str | None = None
    """how the job ended; None: it has not, or there is more to read"""


class JobStream:
    """The first choice of a job."""

    def __init__(self, group: JobGroup, view: View) -> None:
        self._group = group.first_choice()
        self._view = view
        self.tail = Offset(group.state.tokens, group.status in TERMINAL_STATUSES)

    @property
    def media_type(self) -> str:
        return "text/plain" if self._view == "text" else "application/json"

    @property
    def end(self) -> str | None:
        """How the job ended; None: it has not."""
        return self._group.status if self.tail.ended else None

    def offset(self, written: str) -> Offset:
        """Raises: BadRequest"""
        if written == "now":
            return self.tail
        match = _OFFSET.fullmatch("0000000000" if written == "-1" else written)
        if match is None or (match[2] and self._view == "text"):
            raise BadRequest(
                f"offset: {written[:40]!r} is not one: take that of a Stream-Next-Offset header, "
                "-1 for the beginning, or now for the end",
                "offset",
            )
        offset = Offset(int(match[1]), match[2] is not None)
        if offset.ended and offset != self.tail:
            raise BadRequest(f"offset: {written} is not the end of this job", "offset")
        if self._view == "text":  # a terminal event has no text
            return Offset(offset.tokens, offset.tokens == self.tail.tokens and self.tail.ended)
        return offset

    def written(self, offset: Offset) -> str:
        """A word for clients. Words sort as their offsets do."""
        end = "_end" if offset.ended and self._view == "events" else ""
        return f"{offset.tokens:010d}{end}"

    def body(self, part: Part) -> bytes:
        data = part.data if self._view == "text" else f"[{part.data}]"
        return data.encode("utf-8", "replace")

    async def parts(self, start: Offset) -> AsyncGenerator[Part, None]:
        """First what the job had when its state was read, then what comes, to the job's end.

        The first part comes without waiting, even if there is nothing for it.

        Raises: JobNotFound, InvalidCursor, AnswerChanged, BrokerUnavailable
        """
        if start.ended or (start >= self.tail and not self.tail.ended):
            yield Part("", start, is_all=True, end=self.end)
        if start.ended:
            return
        pieces: list[str] = []
        size = 0
        async with aclosing(self._group.bursts([start.tokens])) as bursts:
            async for burst in bursts:
                new = [piece for _, event in burst if (piece := self._piece(event))]
                pieces += new
                size += sum(map(len, new))
                last = burst[-1][1]
                offset = Offset(last.cursor, last.is_terminal)
                is_all = offset >= self.tail
                if is_all or size >= _PART:
                    end = last.type if last.is_terminal else None
                    yield Part(self._joined(pieces), offset, is_all, end)
                    pieces, size = [], 0

    def _piece(self, event: Event) -> str:
        if self._view == "events":
            return compact(event.as_json())
        return event.text if isinstance(event, TokenEvent) else ""

    def _joined(self, pieces: list[str]) -> str:
        return ("" if self._view == "text" else ",").join(pieces)
