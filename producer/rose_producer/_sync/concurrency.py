"""The blocking form of `_async.concurrency`, written by hand: one after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def read_limits() -> defaultdict[int, AbstractContextManager[None]]:
    """None: a thread has a connection of its own."""
    return defaultdict(nullcontext)


class Home:
    """Where a client may be used: in any thread."""

    def check(self) -> None:
        pass


class Once:
    """Work that is done once. Threads that come at the same time may do it twice."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._is_done = False

    def done(self) -> None:
        """Raises: what the work raises."""
        if not self._is_done:
            self._work()
            self._is_done = True


def sent_ahead(items: Iterator[T], send: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """Yield each item with its reply."""
    for item in items:
        yield item, send(item)
