"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int
    slow_rounds: int
    """of the cases that take long and scatter little"""
    submitted_jobs: int
    drained_jobs: int
    long_jobs: int
    long_tokens: int
    round_trips: int
    waiting: tuple[int, int]
    subscribers: int
    streamed_tokens: int
    killed_tokens: int


FULL = Scale(
    rounds=5,
    slow_rounds=3,
    submitted_jobs=50_000,
    drained_jobs=20_000,
    long_jobs=64,
    long_tokens=2000,
    round_trips=500,
    waiting=(10_000, 1_000_000),
    subscribers=2000,
    streamed_tokens=50,
    killed_tokens=100,
)
QUICK = Scale(
    rounds=3,
    slow_rounds=1,
    submitted_jobs=20_000,
    drained_jobs=10_000,
    long_jobs=64,
    long_tokens=500,
    round_trips=200,
    waiting=(10_000, 100_000),
    subscribers=2000,
    streamed_tokens=20,
    killed_tokens=100,
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
