"""The processes of a run: workers, producers and subscribers, each behind a proxy of its own."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from rose_cli.local.broker import free_port
from rose_cli.local.services import read_metrics
from tests.chaos.context import LIMIT, WORKERS, Context, Options
from tests.chaos.managed_process import End, ManagedProcess
from tests.chaos.nursery import Nursery
from tests.chaos.patience import came_true
from tests.chaos.topology import Topology
from tests.chaos.versions import environment

START_S = 120.0
_MAX_STARTS = 3
#: Clocks are wrong by up to so much; every third one is right.
_SKEW_S = 120.0


def counts(options: Options) -> dict[str, int]:
    """How many of each role."""
    return {
        "worker": options.workers,
        "producer": options.producers,
        "subscriber": options.subscribers,
        "gateway": options.gateways,
    }


def names(options: Options) -> list[str]:
    """Of all processes."""
    roles = {**counts(options), "crowd": 1}
    return [f"{role}-{i}" for role, count in roles.items() for i in range(count)]


class Fleet:
    """Entering starts all of them; leaving kills whoever is left."""

    def __init__(
        self, options: Options, folder: Path, topology: Topology, old: Path | None
    ) -> None:
        """`old`: a checkout of another version, which every second process of a role runs."""
        self._options = options
        self._topology = topology
        self.folder = folder
        roles = [role for role, count in counts(options).items() if count]
        self._nursery = Nursery([*roles, "crowd"], options.engines)
        self._limit: int | None = None
        self.processes = [
            ManagedProcess(
                role,
                i,
                partial(self._context, role, i, count),
                folder,
                self._nursery,
                environment(old, folder) if old is not None and i % 2 == 1 else None,
            )
            for role, count in counts(options).items()
            for i in range(count)
        ]
        context = partial(self._context, "crowd", 0, 0)
        self.crowd = ManagedProcess("crowd", 0, context, folder, self._nursery)
        self.workers = [process for process in self.processes if process.role == "worker"]
        self.gateways = [process for process in self.processes if process.role == "gateway"]
        self._http = {process.name: free_port() for process in [*self.workers, *self.gateways]}

    def __enter__(self) -> Self:
        self.set_limit(0)
        (self.folder / WORKERS).mkdir(exist_ok=True)
        self._nursery.__enter__()
        for process in self.processes:
            process.start()
        return self

    async def wait_up(self, also: Callable[[], bool] = lambda: True) -> None:
        """Raises: TimeoutError: not everybody has started."""
        again = dict.fromkeys(self.processes, _MAX_STARTS - 1)

        def up() -> bool:
            for process in self.processes:
                # A worker ends if it does not reach Redis within a second when it starts.
                if process.up_s == 0 and again[process]:
                    again[process] -= 1
                    process.start()
            return also() and all(self.gauges(worker) for worker in self.workers)

        if not await came_true(up, START_S) or not all(one.up_s for one in self.processes):
            raise TimeoutError(f"not everybody has started: see the logs in {self.folder}")

    def __exit__(self, *_: object) -> None:
        for process in [*self.processes, self.crowd]:
            process.kill(End.OVER)
        self._nursery.__exit__()

    def set_limit(self, limit: int) -> None:
        """How far the producers may go, in one piece for whoever reads it just then."""
        if limit == self._limit:
            return
        self._limit = limit
        new = self.folder / "limit.new"
        new.write_text(str(limit))
        new.rename(self.folder / LIMIT)

    def count(self, role: str) -> int:
        """Processes of this role."""
        return counts(self._options)[role]

    @property
    def connections(self) -> dict[str, int]:
        """The most that each asyncio client had open at once; on a cluster that is not known."""
        roles = ("producer", "subscriber")
        clients = [p for p in self.processes if p.role in roles and not p.blocking]
        proxies = self._topology.proxies
        return {p.name: proxies[p.name].peak for p in [*clients, self.crowd] if p.name in proxies}

    def port(self, process: ManagedProcess) -> int:
        """On which a worker or gateway serves HTTP."""
        return self._http[process.name]

    def gauges(self, worker: ManagedProcess) -> dict[str, float]:
        """A worker's own samples; empty when it does not answer."""
        return read_metrics(self._http[worker.name])

    def _context(self, role: str, index: int, count: int, incarnation: int) -> Context:
        name = f"{role}-{index}"
        return Context(
            options=self._options,
            folder=self.folder,
            redis_url=self._topology.url(name),
            partitions=len(self._topology.partitions),
            index=index,
            of=count,
            incarnation=incarnation,
            http_port=self._http.get(name, 0),
            blocking=index == count - 1 and role in ("producer", "subscriber"),
            skew_s=0.0 if self._options.old else skew_s(self._options.seed, name),
        )


def skew_s(seed: int, name: str) -> float:
    """How wrong the clock of a process is, in each of its lives."""
    draw = random.Random(f"{seed}:clock:{name}")
    return draw.choice((0.0, draw.uniform(-_SKEW_S, -1.0), draw.uniform(1.0, _SKEW_S)))
