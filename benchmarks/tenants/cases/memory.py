"""What waiting jobs of tenants take in Redis, and what it takes to enqueue them."""

from dataclasses import dataclass

import redis

from benchmarks.board import Board
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import Case, in_turn
from benchmarks.tenants.stage import NO_LIMIT, request
from rose_producer import Client

BYTES = "bytes a waiting job"
CPU = "us of Redis' CPU to enqueue a job"
_CHUNK = 20_000


@dataclass(frozen=True, slots=True)
class Crowd:
    jobs: int
    tenants: int
    """0: the jobs have none"""

    @property
    def name(self) -> str:
        if not self.tenants:
            return f"{self.jobs:,} jobs without a tenant"
        return f"{self.jobs:,} jobs of {self.tenants:,} tenant{'s' * (self.tenants > 1)}"


@dataclass(frozen=True, slots=True)
class Memory(Case):
    crowds: tuple[Crowd, ...]
    title: str = "Memory of waiting jobs, state and all; the message of each has about 100 bytes"

    def round(self, board: Board, turn: int) -> None:
        for crowd in in_turn(self.crowds, turn):
            board.add(crowd.name, _measure(crowd))


def _measure(crowd: Crowd) -> dict[str, float]:
    with (
        fresh_redis() as broker,
        Client(redis_url=broker.url, **NO_LIMIT) as client,
        redis.Redis(port=broker.port, protocol=2) as direct,
    ):
        client.submit(request("warm", 1).prompt)
        size, seconds = direct.info("memory")["used_memory"], _cpu_s(direct)
        for start in range(0, crowd.jobs, _CHUNK):
            numbers = range(start, min(start + _CHUNK, crowd.jobs))
            names = (f"tenant-{n % crowd.tenants}" if crowd.tenants else "" for n in numbers)
            client.submit_many([request(name) for name in names])
        more = direct.info("memory")["used_memory"] - size
        return {BYTES: more / crowd.jobs, CPU: (_cpu_s(direct) - seconds) * 1e6 / crowd.jobs}


def _cpu_s(direct: redis.Redis) -> float:
    used = direct.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])
