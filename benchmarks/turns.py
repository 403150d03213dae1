"""Taking turns, so that a machine whose speed drifts slows everybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turn(contenders: Sequence[T], turn: int) -> list[T]:
    """There and back: nobody is always first, and neighbours stay close in time."""
    return list(contenders if turn % 2 == 0 else reversed(contenders))
