"""What each tenant gets while all have work, by Jain's index of tokens per weight."""

from collections import Counter
from dataclasses import dataclass

from benchmarks.board import Board, at_least
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import Case
from benchmarks.tenants.fairness import least_jain
from benchmarks.tenants.stage import NO_LIMIT, Users, set_weights
from benchmarks.tenants.stepped import SCRIPTS, SteppedWorker
from rose.protocol import Partition
from rose.transport import RedisClient
from rose_producer import Client

IN_USE = "slots in use"
_STEPS_A_SECOND = 2


@dataclass(frozen=True, slots=True)
class Setting:
    tenants: int
    slots: int
    """of each worker"""
    workers: int = 1
    partitions: int = 1

    @property
    def name(self) -> str:
        places = f", {self.workers} workers, {self.partitions} partitions"
        return f"{self.tenants} tenants, {self.slots} slots{places if self.workers > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Shares(Case):
    """`SteppedWorker`s at 50 tokens a second and slot: two steps are a second."""

    settings: tuple[Setting, ...]
    seconds: int
    windows_s: tuple[tuple[int, float], ...] = ((60, 0.95), (600, 0.99))
    """and the least index in each"""
    title: str = "Tenants that always have work: weights 1 to 10, answers of 1 to 300 tokens"

    def round(self, board: Board, turn: int) -> None:
        for setting in self.settings:
            board.add(setting.name, self._measure(setting, turn))

    def judge(self, board: Board) -> None:
        for setting in self.settings:
            for window_s, least in self.windows_s:
                board.check_every((_index(window_s), setting.name), at_least(least))
            board.check_every((IN_USE, setting.name), at_least(0.98))

    def _measure(self, setting: Setting, seed: int) -> dict[str, float]:
        users = Users(setting.tenants, seed)
        with fresh_redis() as broker:
            set_weights(broker.url, users.weights, setting.partitions)
            with Client(redis_url=broker.url, partitions=setting.partitions, **NO_LIMIT) as client:
                run = _Run(setting, users, client)
                run.carry_out(self.seconds)
        figures = {IN_USE: run.in_use}
        for window_s, _ in self.windows_s:
            figures[_index(window_s)] = least_jain(run.tokens, users.weights, window_s)
        return figures


def _index(window_s: int) -> str:
    return f"least Jain index of {window_s} s"


class _Run:
    def __init__(self, setting: Setting, users: Users, client: Client) -> None:
        self._users = users
        self._client = client
        self._owner: dict[str, str] = {}
        self._all_slots = setting.workers * setting.slots
        self._lacking = Counter(dict.fromkeys(users.weights, 2 * self._all_slots))
        partitions = [Partition(client.settings.queue, i) for i in range(setting.partitions)]
        redis = RedisClient(client.settings)
        redis.load_scripts(SCRIPTS)
        self._workers = [
            SteppedWorker(redis, f"stepped-{n}", partitions, setting.slots, self._owner.__getitem__)
            for n in range(setting.workers)
        ]
        self.tokens: dict[str, list[int]] = {name: [] for name in users.weights}
        """of each tenant, by seconds"""
        self.in_use = 0.0

    def carry_out(self, seconds: int) -> None:
        in_use = 0
        for _ in range(seconds):
            served = Counter[str]()
            self._workers[0].announce()
            for _ in range(_STEPS_A_SECOND):
                self._top_up()
                for worker in self._workers:
                    self._lacking.update(map(self._owner.__getitem__, worker.fill()))
                    in_use += len(worker.running)
                    served += worker.step()
            for name, by_second in self.tokens.items():
                by_second.append(served[name])
        self.in_use = in_use / (seconds * _STEPS_A_SECOND * self._all_slots)

    def _top_up(self) -> None:
        """Whoever has had jobs taken gets as many new ones."""
        names = [name for name, count in self._lacking.items() for _ in range(count)]
        if not names:
            return
        requests = [
            request
            for name, count in self._lacking.items()
            for request in self._users.requests(name, count)
        ]
        for name, job in zip(names, self._client.submit_many(requests), strict=True):
            self._owner[job.id] = name
        self._lacking.clear()
