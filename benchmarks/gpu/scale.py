"""How much is measured on a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int
    requests: int
    lengths: tuple[int, int]
    """of prompts and of answers"""
    max_batch_size: int
    max_step_tokens: int
    contexts: tuple[int, ...]
    new_tokens: int
    """that a request by itself generates at each context"""
    busy_sequences: int
    busy_steps: int
    static_batch: int
    """requests that `generate` takes at once: what its padded cache has room for"""
    limit_s: float
    """of a round of transformers' continuous batching"""
    kv_cache_tokens: int | None
    memory_utilization: float
    """for the engine; peers and the service need the rest"""
    sum_elements: int
    matrix_width: int
    service_requests: int
    first_tokens: int


FULL = Scale(
    rounds=2,
    requests=256,
    lengths=(100, 1024),
    max_batch_size=256,
    max_step_tokens=8192,
    contexts=(128, 8_192, 32_768),
    new_tokens=257,
    busy_sequences=256,
    busy_steps=50,
    static_batch=64,
    limit_s=180,
    kv_cache_tokens=None,
    memory_utilization=0.45,
    sum_elements=2**30,
    matrix_width=8192,
    service_requests=256,
    first_tokens=20,
)
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
    memory_utilization=0.45,
    sum_elements=2**16,
    matrix_width=64,
    service_requests=2,
    first_tokens=1,
)
