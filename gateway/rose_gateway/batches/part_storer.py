"""The parts of a batch on their way from lines to the storage."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from rose.errors import MalformedMessage
from rose_gateway.batches.answer import Answer
from rose_gateway.batches.line import Line
from rose_gateway.batches.line_counter import LineCounter
from rose_gateway.batches.parts import (
    MAX_OPEN,
    PART_LINES,
    Kind,
    OpenPart,
    Piece,
    StoredPart,
    lines_of,
)
from rose_gateway.batches.repository import BatchRepository, Lease
from rose_gateway.batches.retries import retry_while_unavailable
from rose_gateway.files.files import Files

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
