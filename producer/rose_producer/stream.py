"""A job's events for a thread: read ahead by the client's loop, taken over by one reader.

A signal handler may raise anywhere in the reader's thread. So an event counts as taken in the last
step before it is returned, and none is lost or comes twice if the reader goes on with the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self

from rose.errors import WrongEventLoop
from rose.protocol import Event
from rose.transport.loop_thread import LoopThread, Runner, Work

if TYPE_CHECKING:
    from rose_producer.async_client import AsyncClient

#: Events that are read ahead. The log has the rest.
_AHEAD = 1000


class _Reading(Work["AsyncClient"]):
    """Reads a stream in the loop, and hands over all events that are there with one wake-up.

    Knows nothing of the reader's object, whose end must end this.
    """

    def __init__(
        self,
        runner: Runner[AsyncClient],
        job_id: str,
        cursor: int,
        timeout_s: float | None,
        events: list[Event],
    ) -> None:
        super().__init__(runner, self._read)
        self._job_id, self._cursor, self._timeout_s = job_id, cursor, timeout_s
        self.events = events
        """The loop adds to it, the reader takes away."""
        self.ended = False
        self.error: BaseException | None = None
        self.is_posted = False
        self.reader_waits = False
        self.wake_up: SimpleQueue[None] = SimpleQueue()
        self._room: asyncio.Future[None] | None = None

    def finish(self, result: None) -> None:  # noqa: ARG002 - there is none
        self.ended = True
        self._wake_reader()

    def refuse(self, error: BaseException) -> None:
        if self.runner.is_parents:
            return  # the reader begins another one
        self.error = error
        self.ended = True
        self._wake_reader()

    @property
    def has_no_room(self) -> bool:
        return self._room is not None

    def go_on(self) -> None:
        """There is room again. In the loop."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def _read(self, client: AsyncClient) -> None:
        job = client.job(self._job_id)
        async with aclosing(job.bursts(self._cursor, timeout_s=self._timeout_s)) as bursts:
            async for burst in bursts:
                self.events.extend(burst)
                self._wake_reader()
                if len(self.events) >= _AHEAD:
                    self._room = asyncio.get_running_loop().create_future()
                    if len(self.events) >= _AHEAD:  # the reader looks after it has taken all
                        await self._room
                    self._room = None

    def _wake_reader(self) -> None:
        if self.reader_waits:
            self.reader_waits = False
            self.wake_up.put(None)


class _GoOn:
    def __init__(self, reading: _Reading) -> None:
        self._reading = reading

    def begin(self) -> None:
        self._reading.go_on()

    def refuse(self, error: Exception) -> None:
        """It has ended."""


class _Stream:
    """For one reader at a time. In a forked child it goes on by itself, from where it was."""

    _reading: _Reading | None = None
    """for the end of one whose beginning was interrupted"""

    def __init__(
        self, thread: LoopThread[AsyncClient], job_id: str, cursor: int, timeout_s: float | None
    ) -> None:
        self._thread = thread
        self._job_id = job_id
        self._cursor = cursor
        self._timeout_s = timeout_s
        self._events: list[Event] = []
        self._taken = 0
        """of `_events`"""
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Read no more. Waits for nothing."""
        self._closed = True
        reading = self._reading
        if reading is not None and not reading.ended:
            reading.abandon()

    def _wait(self) -> None:
        """Until there are events that are not taken. Raises: StopIteration, what the stream does"""
        while self._taken == len(self._events):
            reading = self._reading
            if self._taken:
                self._forget_taken()
                if reading is not None and reading.has_no_room:
                    reading.runner.post(_GoOn(reading))
            if self._closed:
                raise StopIteration
            if reading is None or not reading.ended:
                reading = self._begun(reading)
            reading.reader_waits = True
            if self._events:
                return
            if not reading.ended:
                reading.wake_up.get()
            elif not self._events:
                self._end(reading)

    def _begun(self, reading: _Reading | None) -> _Reading:
        """What reads for this stream, in this process."""
        runner = self._thread.runner()
        if runner.is_current:
            raise WrongEventLoop("a stream was read on the thread of its own client's event loop")
        if reading is None or reading.runner is not runner:
            reading = _Reading(runner, self._job_id, self._cursor, self._timeout_s, self._events)
            self._reading = reading
        if not reading.is_posted:
            runner.start()
            runner.post(reading)  # once more does no harm
            reading.is_posted = True
        return reading

    def _end(self, reading: _Reading) -> None:
        self._closed = True
        if (error := reading.error) is None:
            raise StopIteration
        try:
            raise error
        finally:
            error = reading.error = None  # its traceback holds this frame

    def _forget_taken(self) -> None:
        last = self._events[self._taken - 1]
        self._cursor = last.cursor
        self._closed = self._closed or last.is_terminal
        # No call in between, in which a signal handler could run.
        del self._events[: self._taken]
        self._taken = 0


class Events(_Stream, Iterator[Event]):
    """Closed by a reader that stops early: it is a context manager, too."""

    def __next__(self) -> Event:
        if self._taken == len(self._events):
            self._wait()
        event = self._events[self._taken]
        # No call follows, in which a signal handler could run.
        self._taken += 1
        return event


class Bursts(_Stream, Iterator[list[Event]]):
    """As `Events`, those together that are there already."""

    def __next__(self) -> list[Event]:
        self._wait()
        burst = self._events[self._taken :]
        taken = self._taken + len(burst)
        self._taken = taken
        return burst
