"""What a run is given, and what each of its processes is told of it."""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from rose.protocol import Priority
from rose_producer import AsyncClient
from tests.chaos import clock
from tests.chaos.blocking import AnyClient, BlockingClient
from tests.chaos.plan import Plan

QUEUE = "chaos"
LEASE_S = 2.0
#: A step longer than this counts as hung.
STALL_S = 3.0
GRACE_S = 2.0
AGEING_S = 4.0
PLACEMENT_S = 1.0
#: How often a job makes room for one of a higher priority.
HAND_BACKS = 3
#: Of 1,700 blocks, which is what jobs at once need: some are evicted.
SECOND_TIER_BYTES = 64_000_000
SECOND_TIER = "second-tier"
#: How long a job says nothing in its middle, and how long a stream bears with a Redis that is away:
#: two short outages in such a pause are not one long outage.
PAUSE_S = 16.0
RECONNECT_S = 12.0
#: Messages of a stream that its subscriber has not asked for yet; more are read from the log.
INBOX = 16
#: At SIGTERM: the grace period, a last step, the last flush, and retries where Redis is away just
#: then. What docs/operations.md says is enough.
DRAIN_LIMIT_S = GRACE_S + 40.0
REDIS_TIMEOUT_S = 2.0
#: Longer than a run: results expire only where the harness lets them.
RESULT_TTL_S = 86_400

#: Where a producer finds out how far it may go: a number in a file.
LIMIT = "limit"
#: Which jobs a crowd is to follow: their ids by number, as JSON.
CROWD = "crowd.json"
#: Where each life of a worker writes its journal.
WORKERS = "workers"

#: What a client handles in Python, and what makes it fork: by default neither does anything.
HANDLED, FORKED = signal.SIGWINCH, signal.SIGURG

TopologyName = Literal["one", "cluster", "sentinel"]
EngineName = Literal["null", "rose", "vllm", "mixed"]
Sabotage = Literal["renewal", "fencing", "log", "memory", "clock", "caps"]


class Options(BaseModel):
    model_config = ConfigDict(frozen=True)

    seed: int
    jobs: int
    engine: EngineName = "null"
    """mixed: every second worker has vllm, the others rose"""
    sabotage: Sabotage | None = None
    topology: TopologyName = "one"
    tls: bool = False
    old: str | None = None
    """a checkout or a commit: every second process of a role runs that version"""
    workers: int = 3
    producers: int = 2
    subscribers: int = 3
    gateways: int = 0
    tenants: int = 0
    """0: no job has one"""
    placement: bool = False
    """workers are chosen by the beginnings of prompts"""
    hand_backs: bool = False
    """a running job makes room for one of a higher priority"""
    second_tier: bool = False
    """workers with a model keep prefixes in files"""
    numbers: bool = False
    """a third of the jobs ask for vectors or scores"""
    crowd: int = 2000
    """streams of one client at once"""
    window: int = 220
    """jobs that wait or run at once"""
    rush: int = 0
    """so many more now and then"""
    brevity: float = 1.0
    """texts are so much shorter"""
    faults_at_once: int = 4
    slots: int = 24
    min_step_s: float = 0.05
    patience_s: float = 45.0
    """this long without an event: nothing will come any more"""

    def plan(self, partitions: int) -> Plan:
        return Plan(
            self.seed,
            self.jobs,
            partitions,
            self.brevity,
            self.tenants,
            self.placement,
            self.numbers,
            Priority.HIGH if self.tenants and self.hand_backs else None,
        )

    @property
    def engines(self) -> set[str]:
        return {"rose", "vllm"} if self.engine == "mixed" else {self.engine}

    @property
    def faults(self) -> dict[str, bool]:
        """What the plan must know of the run."""
        return {
            "failovers": self.topology == "sentinel",
            "second_tier": self.second_tier and "rose" in self.engines,
        }


class Context(BaseModel):
    """Who a process is, and where the run's files are."""

    model_config = ConfigDict(frozen=True)

    options: Options
    folder: Path
    redis_url: str
    partitions: int
    index: int
    """which of the `of` processes of its kind this one is"""
    of: int
    incarnation: int
    http_port: int
    """a worker's"""
    skew_s: float = 0.0
    """how wrong its clock is"""

    blocking: bool = False
    """a producer or subscriber: with the blocking client"""

    @property
    def engine(self) -> str:
        """A worker's."""
        if self.options.engine == "mixed":
            return "rose" if self.index % 2 else "vllm"
        return self.options.engine

    def client(self, **settings: Any) -> AnyClient:
        settings |= {
            "redis_url": self.redis_url,
            "queue": QUEUE,
            "partitions": self.partitions,
            "redis_timeout_s": REDIS_TIMEOUT_S,
            "result_ttl_s": RESULT_TTL_S,
        }
        client = BlockingClient(settings) if self.blocking else AsyncClient(**settings)
        signal.signal(HANDLED, lambda *_: None)
        # Not in the middle of a line: fork waits for a lock of concurrent.futures, which that line
        # may hold.
        asyncio.get_running_loop().add_signal_handler(FORKED, _fork, client)
        return client


def _fork(client: AnyClient) -> None:
    """A child that closes what it has inherited."""
    child = os.fork()
    if child == 0:
        try:
            if isinstance(client, BlockingClient):
                client.close()
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def begin_process() -> Context:
    """A process of the harness, which ends when the harness does: what it is told."""
    _die_with_parent()
    context = Context.model_validate_json(sys.argv[1])
    clock.skew(context.skew_s)
    return context


def run_process(main: Callable[[Context], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main(begin_process()))


def healed_file(folder: Path, number: object) -> Path:
    """Once it exists the poison job of this number is harmless."""
    return folder / f"healed-{number}"


def hang_file(folder: Path, name: str, what: str) -> Path:
    """As long as it exists the step, the tokenizer or the event loop of this worker hangs."""
    return folder / f"hang-{what}-{name}"


def _die_with_parent() -> None:
    """The end of the harness closes our stdin."""

    def watch() -> None:
        # Not through sys.stdin: its lock, held by a daemon thread, aborts the interpreter's end.
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
