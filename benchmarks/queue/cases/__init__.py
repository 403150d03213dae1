"""The measurements, one a module."""

from __future__ import annotations

from typing import Protocol

from benchmarks.board import Board


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
