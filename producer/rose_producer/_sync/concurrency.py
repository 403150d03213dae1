"""The blocking form of `_async.concurrency`, written by hand: one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def read_limit() -> AbstractContextManager[None]:
    """None: a thread has a connection of its own."""
    return nullcontext()


def sent_ahead(items: Iterator[T], send: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """Yield each item with its reply."""
    for item in items:
        yield item, send(item)
