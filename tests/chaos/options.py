"""What a run is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.chaos.context import Sabotage

QUEUE = "chaos"
LEASE_S = 2.0
GRACE_S = 2.0
#: At SIGTERM: the grace period, a last step, the last flush, and retries where Redis is away just
#: then. What docs/operations.md says is enough.
DRAIN_LIMIT_S = GRACE_S + 40.0
REDIS_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Options:
    seed: int
    jobs: int
    engine: Literal["null", "rose"] = "null"
    sabotage: Sabotage | None = None
    workers: int = 3
    producers: int = 2
    subscribers: int = 3
    window: int = 150
    """jobs that wait or run at once"""
    slots: int = 16
    min_step_s: float = 0.05
    patience_s: float = 45.0
    """this long without an event: nothing will come any more"""
