"""The measurements, one a module."""

from __future__ import annotations

from typing import Protocol

from benchmarks.board import Board


class Case(Protocol):
    @property
    def title(self) -> str: ...

    def round(self, board: Board, turn: int) -> None:
        """Measure every contender once. Turn -1 warms up: what it adds is thrown away."""

    def judge(self, board: Board) -> None:
        """Hold what was measured against the targets."""
