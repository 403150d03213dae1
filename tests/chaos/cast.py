"""Everybody in a run: the proxy, and the workers, producers and subscribers behind it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Self

from prometheus_client.parser import text_string_to_metric_families

from rose_cli.demo.broker import EmbeddedBroker, free_port
from tests.chaos.actors import Actor, End
from tests.chaos.options import GRACE_S, LEASE_S, QUEUE, REDIS_TIMEOUT_S, Options
from tests.chaos.proxy import Order
from tests.chaos.stage import LIMIT, Stage


class Cast:
    """Entering starts all of them; leaving kills whoever is left."""

    def __init__(self, options: Options, folder: Path, broker: EmbeddedBroker) -> None:
        self._options = options
        self._folder = folder
        self._broker = broker
        counts = {
            "worker": options.workers,
            "producer": options.producers,
            "subscriber": options.subscribers,
        }
        self.actors = [
            Actor(role, i, self._stage_of(role, i, count), folder)
            for role, count in counts.items()
            for i in range(count)
        ]
        self.workers = [actor for actor in self.actors if actor.role == "worker"]
        self._lines = {actor.name: free_port() for actor in self.actors}
        self._http = {worker.name: free_port() for worker in self.workers}
        self._proxy: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.set_limit(0)
        told = {"ports": self._lines, "redis_port": self._broker.port}
        with (self._folder / "proxy.log").open("wb") as log:
            self._proxy = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.chaos.proxy",
                    self._stage("proxy", 0, 1, 0).model_dump_json(),
                    json.dumps(told),
                ],
                stdin=subprocess.PIPE,
                stderr=log,
            )
        for actor in self.actors:
            actor.start()
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors:
            actor.kill(End.OVER)
        if self._proxy is not None:
            self._orders.close()
            self._proxy.wait()

    def tell_proxy(self, order: Order) -> None:
        self._orders.write(order.model_dump_json().encode() + b"\n")
        self._orders.flush()

    def set_limit(self, limit: int) -> None:
        """How far the producers may go, in one piece for whoever reads it just then."""
        new = self._folder / "limit.new"
        new.write_text(str(limit))
        new.rename(self._folder / LIMIT)

    def gauges(self, worker: Actor) -> dict[str, float]:
        """A worker's own samples; empty when it does not answer."""
        url = f"http://127.0.0.1:{self._http[worker.name]}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                text: str = answer.read().decode()
        except (OSError, HTTPException):  # it may be killed in the middle of the page
            return {}
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if set(sample.labels) <= {"model"}
        }

    @property
    def _orders(self) -> IO[bytes]:
        if self._proxy is None or self._proxy.stdin is None:
            raise RuntimeError("the proxy does not run")
        return self._proxy.stdin

    def _stage_of(self, role: str, index: int, count: int) -> Any:
        return lambda incarnation: self._stage(role, index, count, incarnation)

    def _stage(self, role: str, index: int, count: int, incarnation: int) -> Stage:
        options, name = self._options, f"{role}-{index}"
        concerned = "subscriber" if options.sabotage == "log" else "worker"
        port = self._lines.get(name, self._broker.port)
        return Stage(
            seed=options.seed,
            jobs=options.jobs,
            folder=self._folder,
            redis_url=f"redis://127.0.0.1:{port}/0",
            queue=QUEUE,
            index=index,
            of=count,
            incarnation=incarnation,
            redis_timeout_s=REDIS_TIMEOUT_S,
            sabotage=options.sabotage if role == concerned else None,
            worker=self._worker_settings(name) if role == "worker" else {},
        )

    def _worker_settings(self, name: str) -> dict[str, Any]:
        options = self._options
        return {
            "engine": options.engine,
            "max_batch_size": options.slots,
            "torch_threads": 1,
            "lease_s": LEASE_S,
            "reclaim_interval_s": 0.2,
            "grace_s": GRACE_S,
            "min_step_s": options.min_step_s,
            "http_port": self._http[name],
        }
