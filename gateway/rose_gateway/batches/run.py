"""One pass over the lines of a batch, with a bounded number of them in flight."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator

from rose_gateway.batches.cancellation import CancellationToken
from rose_gateway.batches.line import Answer, Line
from rose_gateway.batches.line_processor import LineProcessor

#: Lines in flight may hold so much, and a single one more.
_HELD_BYTES = 16 * 1024 * 1024


class BatchRun:
    """Belongs to one event loop."""

    def __init__(
        self, processor: LineProcessor, *, window: int, expires_at: float | None = None
    ) -> None:
        """`window`: lines in flight at a time. `expires_at`: Unix seconds; what is in flight then
        ends as batch_expired."""
        self._processor = processor
        self._window = window
        self._expires_at = expires_at
        self._cancellation = CancellationToken()
        self._next_line = asyncio.Lock()
        self._held_bytes = 0
        self._freed = asyncio.Condition()

    @property
    def stopped(self) -> str:
        """batch_cancelled or batch_expired; "" if it goes on."""
        return self._cancellation.code

    async def answers(self, lines: AsyncIterator[Line]) -> AsyncGenerator[Answer, None]:
        """The answers as they come, in any order. After a cancellation `lines` may be read on: it
        holds those that were not begun. Whoever leaves early closes it: the jobs in flight go on
        then, and whoever sends these lines again finds them.

        Raises: what `lines` raises.
        """
        answers: asyncio.Queue[Answer | Exception | None] = asyncio.Queue(self._window)
        slots = [asyncio.create_task(self._slot(lines, answers)) for _ in range(self._window)]
        timer = None
        if self._expires_at is not None:
            left_s = max(0.0, self._expires_at - time.time())
            loop = asyncio.get_running_loop()
            timer = loop.call_later(left_s, self._cancellation.cancel, "batch_expired")
        busy = len(slots)
        try:
            while busy:
                answer = await answers.get()
                if answer is None:
                    busy -= 1
                elif isinstance(answer, Exception):
                    raise answer
                else:
                    yield answer
        finally:
            if timer is not None:
                timer.cancel()
            for slot in slots:
                slot.cancel()
            await asyncio.gather(*slots, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel the jobs in flight, and begin no further line. Each line in flight still gets an
        answer: its own, where that came first, else batch_cancelled."""
        self._cancellation.cancel("batch_cancelled")

    async def _slot(
        self, lines: AsyncIterator[Line], answers: asyncio.Queue[Answer | Exception | None]
    ) -> None:
        """Processes one line after another."""
        try:
            while (line := await self._take(lines)) is not None:
                try:
                    answer = await self._processor.process(line, self._cancellation)
                finally:
                    await self._free(line)
                await answers.put(answer)
        except Exception as error:  # noqa: BLE001 - the reader of the answers gets it
            await answers.put(error)
        else:
            await answers.put(None)

    async def _take(self, lines: AsyncIterator[Line]) -> Line | None:
        async with self._next_line:
            if self._cancellation.code or (line := await anext(lines, None)) is None:
                return None
            async with self._freed:
                await self._freed.wait_for(
                    lambda: not self._held_bytes or self._held_bytes + len(line.raw) <= _HELD_BYTES
                )
                self._held_bytes += len(line.raw)
            return line

    async def _free(self, line: Line) -> None:
        async with self._freed:
            self._held_bytes -= len(line.raw)
            self._freed.notify_all()
