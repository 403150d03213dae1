"""The parts of a batch: consecutive lines whose answers are stored together.

Lines end in any order; a part is stored when all of its lines have ended, in the order of its
lines. So the parts in their order are the answers in the order of the input, and a runner that dies
leaves to do again what was in the parts that it had begun, and no more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rose.errors import MalformedMessage
from rose_gateway.batches.answer import Answer
from rose_gateway.batches.line import Line

#: Lines of a part, by their numbers: part 0 has lines 1 to 500.
PART_LINES = 500
#: Parts that are begun and not stored. One slow line holds up reading this many parts later.
MAX_OPEN = 8
#: Answers of one kind that a part holds before it stores them.
_HELD_BYTES = 1024 * 1024

Kind = Literal["output", "errors"]
KINDS: tuple[Kind, ...] = ("output", "errors")

Write = Callable[[int, Kind, int, Sequence[bytes]], Awaitable["Piece"]]
"""Stores records of part number such, of one kind, as its piece number such."""


class Piece(NamedTuple):
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part whose lines are answered for good."""

    last: int
    """number of its last line"""
    end: int
    """byte offset after that in the input"""
    output: Sequence[Piece] = ()
    errors: Sequence[Piece] = ()

    def pieces(self, kind: Kind) -> Sequence[Piece]:
        return self.output if kind == "output" else self.errors

    @property
    def paths(self) -> list[str]:
        return [piece.path for kind in KINDS for piece in self.pieces(kind)]

    def encode(self) -> bytes:
        return json.dumps([self.last, self.end, self.output, self.errors]).encode()

    @classmethod
    def decode(cls, raw: bytes) -> StoredPart:
        """Raises: MalformedMessage: it was not written by `encode`."""
        try:
            last, end, *kinds = json.loads(raw)
            output, errors = ([Piece(*piece) for piece in pieces] for pieces in kinds)
        except (ValueError, TypeError):
            raise MalformedMessage("a part of a batch is not what the gateway writes") from None
        return cls(last, end, output, errors)


class Start(NamedTuple):
    """Where a runner begins to read."""

    offset: int
    line: int


def start_of(stored: Mapping[int, StoredPart]) -> Start:
    """After the last of those parts that follow each other from the first one on."""
    offset, line, number = 0, 1, 0
    while (part := stored.get(number)) is not None:
        offset, line, number = part.end, part.last + 1, number + 1
    return Start(offset, line)


@dataclass(slots=True)
class _Records:
    """Of one kind: what is held, and what was stored before because it was too much to hold."""

    held: list[tuple[int, bytes]] = field(default_factory=list)
    size: int = 0
    pieces: list[Piece] = field(default_factory=list)

    def take(self) -> list[bytes]:
        records = [record for _, record in sorted(self.held)]
        self.held, self.size = [], 0
        return records


class OpenPart:
    """A part that is being answered."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.last = self.end = 0
        self._open_lines = 0
        self.read_to_its_end = False
        """No further line is one of its."""
        self.being_stored = False
        self._unkept: list[Answer] = []
        self._records = {kind: _Records() for kind in KINDS}
        self._storing = asyncio.Lock()

    @property
    def complete(self) -> bool:
        """All its lines have been read, and answered."""
        return self.read_to_its_end and self._open_lines == 0

    def begin(self, line: Line) -> None:
        self._open_lines += 1
        self.last, self.end = line.number, line.end

    async def add(self, answer: Answer, write: Write) -> None:
        """Raises: StorageUnavailable, BrokerUnavailable"""
        kind: Kind = "output" if answer.succeeded else "errors"
        records = self._records[kind]
        records.held.append((answer.number, answer.record))
        records.size += len(answer.record)
        if answer.unkept is not None:
            self._unkept.append(answer)
        self._open_lines -= 1
        if records.size >= _HELD_BYTES:
            await self._store(kind, write)

    async def delivered(self) -> None:
        """Its answers are stored for good: jobs that were not to be kept go.

        Raises: BrokerUnavailable
        """
        for answer in self._unkept:
            await answer.delivered()

    async def stored(self, write: Write) -> StoredPart:
        """When it is complete. Raises: StorageUnavailable, BrokerUnavailable"""
        for kind in KINDS:
            await self._store(kind, write)
        output, errors = (self._records[kind].pieces for kind in KINDS)
        return StoredPart(self.last, self.end, output, errors)

    async def _store(self, kind: Kind, write: Write) -> None:
        async with self._storing:
            records = self._records[kind]
            if records.held:
                number = len(records.pieces)
                records.pieces.append(await write(self.number, kind, number, records.take()))


async def lines_of(records: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for record in records:
        yield record + b"\n"
