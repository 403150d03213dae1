"""What the threads of a blocking client share: turns, and connections that wait for their next use.

A forked process leaves both to its parent and starts again.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import redis
from redis.connection import AbstractConnection

from rose.transport.pipeline import IDLE_S
from rose.transport.redis_internals import Connector, open_blocking, reopen_if_dead

T = TypeVar("T")

#: Round trips of a client at the same time, to each node of a cluster.
_MAX_TURNS = 16

#: Idle connections kept for the next use.
_MAX_IDLE = 32


class Turns:
    """So many threads at a time; the others wait in the order in which they came."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._begin()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            if self._left > 0:
                self._left -= 1
                return
            turn = _Turn()
            self._waiting.append(turn)
        try:
            turn.wait()
        except BaseException:  # a thread may be interrupted while it waits
            self._give_up(turn)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with self._lock:
            if isinstance(error, redis.TimeoutError):  # the others would wait in vain too
                while self._waiting:
                    self._waiting.popleft().refuse(error)
            self._pass_on()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._left = self._turns
        self._waiting: deque[_Turn] = deque()

    def _give_up(self, turn: _Turn) -> None:
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.error is None:
                self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().grant()
        else:
            self._left += 1


class _Turn:
    def __init__(self) -> None:
        self.error: redis.TimeoutError | None = None
        self._settled = threading.Event()

    def grant(self) -> None:
        self._settled.set()

    def refuse(self, error: redis.TimeoutError) -> None:
        self.error = error
        self._settled.set()

    def wait(self) -> None:
        """Raises: redis.TimeoutError: it was refused."""
        self._settled.wait()
        if self.error is not None:
            raise redis.TimeoutError(str(self.error))


class IdleConnections(Generic[T]):
    """The last one that was kept is the first one to be used again. What nobody has used for a
    while is closed, by a thread that runs only while there is something to close, and ends with the
    client."""

    def __init__(self, close: Callable[[T], None]) -> None:
        self._close = close
        self._closed = False
        self._begin()

    def take(self) -> T | None:
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            return self._kept.pop()[1] if self._kept else None

    def keep(self, connection: T) -> None:
        with self._lock:
            full = self._closed or len(self._kept) >= _MAX_IDLE
            if not full:
                self._kept.append((time.monotonic(), connection))
                self._tidy_later()
        if full:
            self._close(connection)

    def close(self) -> None:
        """Those in use are closed when they come back."""
        with self._lock:
            self._closed = True
            if self._end is not None:
                self._end.put(None)
        self._close_before(float("inf"))

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, T]] = deque()
        self._end: SimpleQueue[None] | None = None
        """Of the thread that waits to tidy, if one does: it ends when something is put here."""

    def _tidy_later(self) -> None:
        if self._end is None:
            self._end = end = SimpleQueue[None]()
            # The client may be forgotten without having been closed. What then ends the thread may
            # interrupt any code, as the garbage collector does, and a simple queue allows that.
            alive = weakref.ref(self, lambda _: end.put(None))
            threading.Thread(target=_tidy_after, args=(alive, end), daemon=True).start()

    def _tidy(self) -> None:
        self._close_before(time.monotonic() - IDLE_S)
        with self._lock:
            self._end = None
            if self._kept:
                self._tidy_later()

    def _close_before(self, kept_at: float) -> None:
        old: list[T] = []
        with self._lock:
            while self._kept and self._kept[0][0] <= kept_at:
                old.append(self._kept.popleft()[1])
        for connection in old:
            self._close(connection)


def _tidy_after(alive: weakref.ref[IdleConnections[object]], end: SimpleQueue[None]) -> None:
    try:
        end.get(timeout=IDLE_S / 2)
    except Empty:
        idle = alive()
        if idle is not None:
            idle._tidy()


class BlockingPool:
    """Connections to one server, each for one round trip at a time."""

    def __init__(self, connector: Connector, *, blocking: bool = False) -> None:
        """`blocking`: for commands that wait inside Redis, so that no caller waits for another."""
        self.turns = Turns(10_000 if blocking else _MAX_TURNS)
        self._connector = connector
        self._idle = IdleConnections(AbstractConnection.disconnect)

    def get_connection(self) -> AbstractConnection:
        """Raises: CONNECTION_LOST"""
        connection = self._idle.take()
        if connection is None:
            connection = self._connector()
            open_blocking(connection)
        else:
            reopen_if_dead(connection)
        return connection

    def release(self, connection: AbstractConnection) -> None:
        self._idle.keep(connection)

    def close(self) -> None:
        self._idle.close()
