"""The processes of a run: workers, producers and subscribers, each behind a proxy of its own."""

from __future__ import annotations

import random
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from rose_cli.demo.broker import EmbeddedBroker, free_port
from rose_cli.demo.workers import read_metrics
from tests.chaos.context import LIMIT, Context, Options
from tests.chaos.evidence import Trouble
from tests.chaos.managed_process import End, ManagedProcess
from tests.chaos.versions import environment
from tests.support.proxy import Proxy

#: Clocks are wrong by up to so much; every third one is right.
_SKEW_S = 120.0


class Fleet:
    """Entering starts all of them; leaving kills whoever is left."""

    def __init__(
        self, options: Options, folder: Path, broker: EmbeddedBroker, old: Path | None
    ) -> None:
        """`old`: a checkout of another version, which every second process of a role runs."""
        self._options = options
        self.folder = folder
        counts = {
            "worker": options.workers,
            "producer": options.producers,
            "subscriber": options.subscribers,
        }
        self.processes = [
            ManagedProcess(
                role,
                i,
                partial(self._context, role, i, count),
                folder,
                environment(old, folder) if old is not None and i % 2 == 1 else None,
            )
            for role, count in counts.items()
            for i in range(count)
        ]
        self.workers = [process for process in self.processes if process.role == "worker"]
        self.proxies = {process.name: Proxy(broker.port) for process in self.processes}
        self._http = {worker.name: free_port() for worker in self.workers}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.set_limit(0)
        for proxy in self.proxies.values():
            self._stack.enter_context(proxy)
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill(End.OVER)
        self._stack.close()

    def set_limit(self, limit: int) -> None:
        """How far the producers may go, in one piece for whoever reads it just then."""
        new = self.folder / "limit.new"
        new.write_text(str(limit))
        new.rename(self.folder / LIMIT)

    def gauges(self, worker: ManagedProcess) -> dict[str, float]:
        """A worker's own samples; empty when it does not answer."""
        return read_metrics(self._http[worker.name])

    def cut_troubles(self) -> list[Trouble]:
        return [
            Trouble(cut_s - 2.0, cut_s + 1.0, "cut", name)
            for name, proxy in self.proxies.items()
            for cut_s, _ in proxy.cut_log
        ]

    def _context(self, role: str, index: int, count: int, incarnation: int) -> Context:
        name = f"{role}-{index}"
        return Context(
            options=self._options,
            folder=self.folder,
            redis_url=self.proxies[name].url,
            index=index,
            of=count,
            incarnation=incarnation,
            http_port=self._http.get(name, 0),
            blocking=index == count - 1,
            skew_s=skew_s(self._options.seed, name),
        )


def skew_s(seed: int, name: str) -> float:
    """How wrong the clock of a process is, in each of its lives."""
    draw = random.Random(f"{seed}:clock:{name}")
    return draw.choice((0.0, draw.uniform(-_SKEW_S, -1.0), draw.uniform(1.0, _SKEW_S)))
