"""The tenants of a run: who they are, what they may have, and whose job is whose.

Drawn from the seed, as the jobs are. Some jobs have no tenant.
"""

import random
from dataclasses import dataclass

#: Of ten jobs so many have no tenant.
_NOBODYS = 1
#: A limited tenant may have so many jobs, or one in each partition.
_MAX_RUNNING, _MAX_QUEUED = 4, 6


@dataclass(frozen=True, slots=True)
class TenantPlan:
    name: str
    weight: int
    max_running: int | None = None
    max_queued: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.max_running is not None or self.max_queued is not None


def tenant_plans(seed: int, count: int, partitions: int) -> list[TenantPlan]:
    """Every fourth may run few jobs at once, every fourth may have few in the queue."""
    plans = []
    for n in range(count):
        draw = random.Random(f"{seed}:tenant:{n}")
        plans.append(
            TenantPlan(
                f"tenant-{n}",
                draw.randint(1, 10),
                max_running=max(_MAX_RUNNING, partitions) if n % 4 == 1 else None,
                max_queued=max(_MAX_QUEUED, partitions) if n % 4 == 2 else None,
            )
        )
    return plans


def tenant_of(seed: int, number: int, count: int) -> str:
    """Whose job this is; "" for nobody's. Who is limited has half as many as the others."""
    draw = random.Random(f"{seed}:owner:{number}")
    if count == 0 or draw.randrange(10) < _NOBODYS:
        return ""
    n = draw.randrange(count)
    if n % 4 in (1, 2) and draw.random() < 0.5:
        n = n // 4 * 4
    return f"tenant-{n}"
