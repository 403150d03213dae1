"""The measurements, one a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from benchmarks.queue.board import Board

T = TypeVar("T")


class Case(Protocol):
    @property
    def title(self) -> str: ...

    @property
    def rounds(self) -> int | None:
        """How many it takes, where it is not for the caller to say."""

    async def round(self, board: Board, turn: int) -> None:
        """Measure every contender once."""

    def judge(self, board: Board) -> None:
        """Hold what was measured against the targets."""


def in_turn(contenders: Sequence[T], turn: int) -> list[T]:
    """There and back: nobody is always first, and neighbours stay close in time."""
    return list(contenders if turn % 2 == 0 else reversed(contenders))
