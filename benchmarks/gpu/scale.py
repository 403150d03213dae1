"""How much is measured on a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int = 2
    requests: int = 256
    lengths: tuple[int, int] = (100, 1024)
    """of prompts and of answers"""
    max_batch_size: int = 256
    max_step_tokens: int = 8192
    contexts: tuple[int, ...] = (128, 8_192, 32_768)
    new_tokens: int = 257
    """that a request by itself generates at each context"""
    busy_sequences: int = 256
    busy_steps: int = 50
    static_batch: int = 64
    """requests that `generate` takes at once: what its padded cache has room for"""
    limit_s: float = 180
    """of a round of transformers' continuous batching"""
    kv_cache_tokens: int | None = None
    memory_utilization: float = 0.45
    """for the engine; peers and the service need the rest"""
    sum_elements: int = 2**30
    matrix_width: int = 8192
    service_requests: int = 256
    first_tokens: int = 20


FULL = Scale()
SMOKE = Scale(
    rounds=1,
    requests=3,
    lengths=(2, 4),
    max_batch_size=4,
    max_step_tokens=64,
    contexts=(4, 12),
    new_tokens=3,
    busy_sequences=2,
    busy_steps=2,
    static_batch=2,
    limit_s=30,
    kv_cache_tokens=512,
    sum_elements=2**16,
    matrix_width=64,
    service_requests=2,
    first_tokens=1,
)
