"""A run over the lines of a batch, in a gateway or by `rose batch run`.

A bounded number of lines is in flight. As many are read ahead, and those that begin alike are begun
one after the other, so that workers find their beginning in a cache. They end in any order; their
answers are stored in the order of the input, and a checkpoint says how far that has come. Whoever
goes on begins behind it.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

from rose.errors import BrokerUnavailable, MalformedMessage
from rose_gateway.batches.line import Answer, Line, retry_while_unavailable
from rose_gateway.batches.line_processor import CancellationToken, LineProcessor

_VERSION = 1
#: Lines in flight and those read ahead may hold so much, and a single one more.
_HELD_BYTES = 16 * 1024 * 1024
#: Lines that are begun and not stored: one that takes long holds up those so far behind it.
_MAX_UNSTORED = 4096
_MAX_UNSTORED_BYTES = 8 * 1024 * 1024
#: Of a line, to find those that begin alike.
_COMPARED_BYTES = 8192
#: So much is stored together.
STORED_LINES = 500
_STORED_BYTES = 1024 * 1024
#: Between two looks whether something is to be stored.
_POLL_S = 0.2


def _beginning(line: Line) -> tuple[bytes, int]:
    """By which lines are sorted: as far as it need not be read, of the request's body."""
    start = max(0, line.raw.find(b'"body"'))
    return line.raw[start : start + _COMPARED_BYTES], line.number


class Piece(NamedTuple):
    """A file of answers, or of errors, up to this size."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All lines up to here have their answers in the pieces, and no other line has."""

    batch_id: str
    """names the jobs of its lines: whoever goes on finds those that were under way"""
    input: str
    """the id of the input file, or its SHA-256"""
    line: int = 0
    """the number of the last one of them"""
    input_bytes: int = 0
    """up to the end of that line"""
    succeeded: int = 0
    failed: int = 0
    output: tuple[Piece, ...] = ()
    errors: tuple[Piece, ...] = ()

    @property
    def lines(self) -> int:
        """Without those that are blank."""
        return self.succeeded + self.failed

    def after(self, line: Line, *, succeeded: bool) -> Self:
        """With the next line, whose answer is in no piece yet."""
        return replace(
            self,
            line=line.number,
            input_bytes=line.end,
            succeeded=self.succeeded + succeeded,
            failed=self.failed + (not succeeded),
        )

    def encode(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Raises: MalformedMessage: it was not written by `encode`."""
        try:
            fields = json.loads(raw)
            version = fields.pop("version")
            for kind in ("output", "errors"):
                fields[kind] = tuple(Piece(*piece) for piece in fields[kind])
            checkpoint = cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            version = None
        if version != _VERSION:
            raise MalformedMessage("this is no checkpoint of a batch, or of another version")
        return checkpoint


class AnswerStore(Protocol):
    @property
    def every_s(self) -> float:
        """Answers are stored after this time though they are few."""

    async def store(
        self, checkpoint: Checkpoint, output: Sequence[bytes], errors: Sequence[bytes]
    ) -> Checkpoint:
        """Store records behind the pieces, and then the checkpoint, which is returned with the
        pieces that it has now. Raises: what a run cannot go on after."""


class BatchRun:
    """Belongs to one event loop."""

    def __init__(
        self,
        processor: LineProcessor,
        store: AnswerStore,
        checkpoint: Checkpoint,
        *,
        window: int,
        cancellation: CancellationToken | None = None,
        on_answer: Callable[[Answer], object] | None = None,
        stores_when_cancelled: bool = False,
    ) -> None:
        """`checkpoint`: where it begins. `window`: lines in flight at a time. `on_answer`: gets
        each answer when it comes. `stores_when_cancelled`: if `finish` is cancelled, it ends when
        the answers that were there are stored; else they come again in the next run."""
        self.done = checkpoint
        """with the answers whose turn has come, though they may not be stored yet"""
        self._processor = processor
        self._store = store
        self._window = window
        self._cancellation = cancellation or CancellationToken()
        self._on_answer = on_answer
        self._stores_when_cancelled = stores_when_cancelled
        self._next_line = asyncio.Lock()
        self._freed = asyncio.Event()
        self._held_bytes = 0
        self._unstored = self._unstored_bytes = 0
        self._ahead: list[Line] = []
        """lines that were read and not begun, the next one last"""
        self._left: Line | None = None
        """the next one of the input, which exceeded what may be held"""
        self._begun: deque[Line] = deque()
        """and those read ahead, in the order of the input"""
        self._early: dict[int, Answer] = {}
        """answers whose turn has not come, by the number of the line"""
        self._pending: list[Answer] = []
        """to be stored, in their order"""
        self._pending_bytes = 0
        self._ended = asyncio.Event()
        self._is_cancelled = False

    async def finish(self, lines: AsyncIterator[Line]) -> None:
        """Answer these lines, which are those behind the checkpoint. After a cancellation by the
        token each line still gets an answer: its own, where that came first, else why there is
        none. Where this is cancelled, the jobs in flight go on, and the next run finds them.

        Raises: what `lines` and the store raise.
        """
        slots = [asyncio.create_task(self._slot(lines)) for _ in range(self._window)]
        processing: asyncio.Future[Any] = asyncio.gather(*slots)
        storing = asyncio.create_task(self._keep_storing())
        try:
            await asyncio.wait({processing, storing}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._is_cancelled = True
            if not self._stores_when_cancelled:
                storing.cancel()
            raise
        finally:
            for slot in slots:
                slot.cancel()
            await asyncio.gather(processing, *slots, return_exceptions=True)
            self._ended.set()
            stored = (await asyncio.gather(storing, return_exceptions=True))[0]
        if isinstance(stored, BaseException):
            raise stored
        processing.result()

    async def _slot(self, lines: AsyncIterator[Line]) -> None:
        """Processes one line after another."""
        while (line := await self._take(lines)) is not None:
            try:
                answer = await self._processor.process(line, self._cancellation)
            finally:
                self._held_bytes -= len(line.raw)
                self._freed.set()
            self._add(answer)

    async def _take(self, lines: AsyncIterator[Line]) -> Line | None:
        async with self._next_line:
            if not self._ahead:
                while self._unstored_much:
                    await self._until_freed()
                await self._read_ahead(lines)
            return self._ahead.pop() if self._ahead else None

    async def _read_ahead(self, lines: AsyncIterator[Line]) -> None:
        ahead: list[Line] = []
        while len(ahead) < self._window and not (ahead and self._unstored_much):
            line, self._left = self._left or await anext(lines, None), None
            if line is None:
                break
            if ahead and self._exceeds(line):
                self._left = line
                break
            while self._exceeds(line):
                await self._until_freed()
            self._held_bytes += len(line.raw)
            self._unstored += 1
            self._begun.append(Line(line.number, line.end, b""))
            ahead.append(line)
        self._ahead = sorted(ahead, key=_beginning, reverse=True)

    @property
    def _unstored_much(self) -> bool:
        return self._unstored >= _MAX_UNSTORED or self._unstored_bytes >= _MAX_UNSTORED_BYTES

    def _exceeds(self, line: Line) -> bool:
        return self._held_bytes > 0 and self._held_bytes + len(line.raw) > _HELD_BYTES

    async def _until_freed(self) -> None:
        """Only whoever takes the next line waits here."""
        self._freed.clear()
        await self._freed.wait()

    def _add(self, answer: Answer) -> None:
        if self._on_answer is not None:
            self._on_answer(answer)
        self._early[answer.number] = answer
        self._unstored_bytes += len(answer.record)
        while self._begun and (turn := self._early.pop(self._begun[0].number, None)):
            self.done = self.done.after(self._begun.popleft(), succeeded=turn.succeeded)
            self._pending.append(turn)
            self._pending_bytes += len(turn.record)

    async def _keep_storing(self) -> None:
        stored_at = time.monotonic()
        ended = False
        while not ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._ended.wait()
            ended = self._ended.is_set()
            is_due = time.monotonic() - stored_at >= self._store.every_s
            is_much = len(self._pending) >= STORED_LINES or self._pending_bytes >= _STORED_BYTES
            if ended or is_due or is_much:
                await self._store_pending()
                stored_at = time.monotonic()

    async def _store_pending(self) -> None:
        if not self._pending:
            return
        answers, self._pending = self._pending, []
        size, self._pending_bytes = self._pending_bytes, 0
        output = [answer.record for answer in answers if answer.succeeded]
        errors = [answer.record for answer in answers if not answer.succeeded]
        stored = await self._store.store(self.done, output, errors)
        self.done = replace(self.done, output=stored.output, errors=stored.errors)
        self._unstored -= len(answers)
        self._unstored_bytes -= size
        self._freed.set()
        for answer in answers:
            if self._is_cancelled:
                with suppress(BrokerUnavailable):  # then its job goes when it expires
                    await answer.delivered()
            else:
                await retry_while_unavailable(answer.delivered)
