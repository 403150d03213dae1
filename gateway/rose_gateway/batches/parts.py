"""The parts of a batch: consecutive lines whose answers are stored together.

Lines end in any order; a part is stored when all of its lines have ended, in the order of its
lines. So the parts in their order are the answers in the order of the input, and a runner that dies
leaves to do again what was in the parts that it had begun, and no more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from rose.errors import MalformedMessage
from rose_gateway.batches.line import Answer, Line, LineCounter, retry_while_unavailable
from rose_gateway.files.files import Files
from rose_gateway.storage.batch_repository import BatchRepository, Lease

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


Spawn = Callable[[Coroutine[Any, Any, None]], object]


class PartStorer:
    """Stores each part as soon as all of its lines have ended. Belongs to one event loop."""

    def __init__(
        self,
        files: Files,
        repository: BatchRepository,
        lease: Lease,
        counter: LineCounter,
        *,
        spawn: Spawn,
        kept_until_ms: int,
    ) -> None:
        """`spawn`: runs what it is given beside whatever else goes on, and ends with it.
        `kept_until_ms`: what no file has by then may be deleted."""
        self._files = files
        self._repository = repository
        self._lease = lease
        self._counter = counter
        self._spawn = spawn
        self._kept_until_ms = kept_until_ms
        self._open: dict[int, OpenPart] = {}
        self._changed = asyncio.Condition()
        self.stored: dict[int, StoredPart] = {}

    async def load(self, *, readable_only: bool) -> None:
        """What earlier runners have stored. `readable_only`: leave out what somebody else wrote.

        Raises: MalformedMessage
        """
        parts = await retry_while_unavailable(partial(self._repository.parts, self._lease.batch_id))
        for number, raw in parts.items():
            try:
                self.stored[number] = StoredPart.decode(raw)
            except MalformedMessage:
                if not readable_only:
                    raise

    async def begin(self, line: Line) -> bool:
        """Lines begin in their order. Waits while too many parts are open. False: the line's part
        is stored."""
        number = _part_of(line.number)
        if number in self.stored:
            return False
        if number not in self._open:
            self.end_reading()
            async with self._changed:
                await self._changed.wait_for(lambda: len(self._open) < MAX_OPEN)
            self._open[number] = OpenPart(number)
        self._open[number].begin(line)
        return True

    def end_reading(self) -> None:
        """The parts that are open get no further line."""
        for part in self._open.values():
            if not part.read_to_its_end:
                part.read_to_its_end = True
                self._store_if_complete(part)

    async def add(self, answer: Answer) -> None:
        part = self._open[_part_of(answer.number)]
        self._counter.add(answer)  # before the part can be complete
        await part.add(answer, self._write)
        self._store_if_complete(part)

    async def all_stored(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._open)

    def _store_if_complete(self, part: OpenPart) -> None:
        if part.complete and not part.being_stored:
            part.being_stored = True
            self._spawn(self._store(part))

    async def _store(self, part: OpenPart) -> None:
        """Raises: LeaseLost"""
        stored = await part.stored(self._write)
        await self._counter.flush()
        kept = await retry_while_unavailable(
            partial(
                self._repository.register,
                self._lease,
                part.number,
                stored.encode(),
                stored.paths,
                kept_until_ms=self._kept_until_ms,
            )
        )
        if kept:
            await retry_while_unavailable(part.delivered)
        else:
            await retry_while_unavailable(partial(self._files.discard, stored.paths))
        del self._open[part.number]
        self.stored[part.number] = stored
        async with self._changed:
            self._changed.notify_all()

    async def _write(self, part: int, kind: Kind, piece: int, records: Sequence[bytes]) -> Piece:
        """The claim is in the name: a runner that has lost the batch may still be writing."""
        claim = f"{self._lease.epoch}-{self._lease.runner.rpartition('-')[2]}"
        name = f"{kind}-{part:06d}-{claim}-{piece}.jsonl"
        path = f"batches/{self._lease.batch_id}/{name}"
        # Its part may be complete only when the batch is nearly over.
        reserve = partial(self._files.repository.reserve, path, until_ms=self._kept_until_ms)
        await retry_while_unavailable(reserve)
        size = await retry_while_unavailable(
            lambda: self._files.store.write(path, lines_of(records))
        )
        return Piece(path, size)


def _part_of(number: int) -> int:
    return (number - 1) // PART_LINES
