"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int
    requests: int
    most_tokens: int
    """that one of them generates"""
    models: tuple[str, ...]
    dtypes: tuple[str, ...]
    """none: the one that this processor is made for"""
    limit_s: float
    """a round of a peer that is very slow"""
    single_tokens: int
    sum_elements: int
    waiting: tuple[int, ...]
    waiting_tokens: int
    first_context: int
    context_steps: int
    arrivals: int
    arrival_tokens: int
    first_tokens: int
    """requests, one by one, whose time to the first token is taken in a round"""


FULL = Scale(
    rounds=3,
    requests=32,
    most_tokens=128,
    models=("llama-135m",),
    dtypes=(),
    limit_s=90,
    single_tokens=65,
    sum_elements=2**28,
    waiting=(10, 100, 1_000, 10_000),
    waiting_tokens=4_000,
    first_context=128,
    context_steps=16,
    arrivals=8,
    arrival_tokens=1_024,
    first_tokens=20,
)
TINY = Scale(
    rounds=1,
    requests=2,
    most_tokens=8,
    models=("built-in",),
    dtypes=("float32",),
    limit_s=30,
    single_tokens=5,
    sum_elements=2**20,
    waiting=(2, 20),
    waiting_tokens=64,
    first_context=512,
    context_steps=2,
    arrivals=1,
    arrival_tokens=128,
    first_tokens=2,
)
