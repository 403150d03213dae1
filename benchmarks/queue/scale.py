"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int = 5
    slow_rounds: int = 3
    """of the cases that take long and scatter little"""
    submitted_jobs: int = 50_000
    drained_jobs: int = 20_000
    long_jobs: int = 64
    long_tokens: int = 2000
    round_trips: int = 500
    waiting: tuple[int, int] = (10_000, 1_000_000)
    subscribers: int = 2000
    streamed_tokens: int = 50
    killed_tokens: int = 100


FULL = Scale()
QUICK = Scale(
    rounds=3,
    slow_rounds=1,
    submitted_jobs=20_000,
    drained_jobs=10_000,
    long_tokens=500,
    round_trips=200,
    waiting=(10_000, 100_000),
    streamed_tokens=20,
)
TINY = Scale(
    rounds=1,
    slow_rounds=1,
    submitted_jobs=500,
    drained_jobs=500,
    long_jobs=8,
    long_tokens=50,
    round_trips=20,
    waiting=(500, 1000),
    subscribers=20,
    streamed_tokens=10,
    killed_tokens=20,
)
