"""What a fetch costs with few and with very many tenants waiting."""

from dataclasses import dataclass

import redis

from benchmarks.board import Board, at_most
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import Case, in_turn
from benchmarks.tenants.stage import NO_LIMIT, request
from benchmarks.tenants.stepped import SCRIPTS, SteppedWorker
from rose.protocol import Partition
from rose.transport import RedisClient
from rose_producer import Client

FETCH = "fetch of one job and its take, us in Redis"
_CHUNK = 20_000


@dataclass(frozen=True, slots=True)
class Fetching(Case):
    """The same number of jobs waits, of few tenants or of many."""

    tenants: tuple[int, int]
    jobs: int
    fetches: int
    title: str = "A fetch with few and with many tenants waiting"

    def round(self, board: Board, turn: int) -> None:
        for tenants in in_turn(self.tenants, turn):
            board.add(_name(tenants), {FETCH: self._measure(tenants)})

    def judge(self, board: Board) -> None:
        few, many = map(_name, self.tenants)
        board.check_ratio(f"{many} to {few}", (FETCH, many), (FETCH, few), at_most(1.0))

    def _measure(self, tenants: int) -> float:
        with fresh_redis() as broker, Client(redis_url=broker.url, **NO_LIMIT) as client:
            for start in range(0, self.jobs, _CHUNK):
                numbers = range(start, min(start + _CHUNK, self.jobs))
                client.submit_many([request(f"tenant-{n % tenants}") for n in numbers])
            scripts = RedisClient(client.settings)
            scripts.load_scripts(SCRIPTS)
            partition = Partition(client.settings.queue)
            worker = SteppedWorker(scripts, "stepped", [partition], 1, str)
            worker.announce()
            with redis.Redis(port=broker.port, protocol=2) as direct:
                total_us = 0
                for _ in range(self.fetches):
                    direct.config_resetstat()
                    worker.fill()
                    total_us += direct.info("commandstats")["cmdstat_evalsha"]["usec"]
                    worker.step()
        return total_us / self.fetches


def _name(tenants: int) -> str:
    return f"{tenants:,} tenants waiting"
