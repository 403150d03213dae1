"""A run over HTTP: clients send requests, faults strike, and what was received is checked."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rose_producer import Client as Product
from tests.chaos.context import QUEUE, Options
from tests.chaos.evidence import RedisState, read_partition
from tests.chaos.faults import FaultInjector
from tests.chaos.faults.scene import Scene
from tests.chaos.findings import Finding
from tests.chaos.fleet import START_S, Fleet, names
from tests.chaos.http.balancer import Balancer
from tests.chaos.http.check import Rule, check_jobs, check_received, check_replay
from tests.chaos.http.client import Client
from tests.chaos.http.http import Disconnected, send
from tests.chaos.http.requests import Received, draw
from tests.chaos.journal import Journal
from tests.chaos.managed_process import End, ManagedProcess, watch
from tests.chaos.patience import came_true
from tests.chaos.plan import FaultKind, Plan, schedule
from tests.chaos.progress import Progress
from tests.chaos.raw import RawAdder
from tests.chaos.topology import topology_of

#: Faults of a run of 2,500 requests; others have them in proportion, one of each kind at least.
_FULL = 2500
_DOSES = {
    FaultKind.KILL_WORKER: 25,
    FaultKind.STOP_WORKER: 10,
    FaultKind.KILL_GATEWAY: 40,
    FaultKind.STOP_GATEWAY: 12,
    FaultKind.DRAIN_GATEWAY: 10,
    FaultKind.RESTART_REDIS: 8,
    FaultKind.FREEZE_REDIS: 4,
    FaultKind.CUT: 30,
    FaultKind.LOST_REPLY: 20,
    FaultKind.SILENCE: 10,
    FaultKind.CUT_CLIENT: 150,
    FaultKind.SILENCE_CLIENTS: 10,
}
_SETTLE_S = 20.0
_POLL_S = 0.05
#: Clients that send requests while the last faults strike.
_EXTRA = 30


class HttpOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    seed: int
    responses: int = 2000
    chats: int = 500
    replays: int = 100
    tls: bool = False
    """between the processes and Redis"""
    window: int = 200
    """clients at once"""
    patience_s: float = 180.0
    """this long without an event: nothing will come any more"""

    @property
    def requests(self) -> int:
        return self.responses + self.chats

    @property
    def fleet(self) -> Options:
        return Options(
            seed=self.seed,
            jobs=self.requests,
            tls=self.tls,
            producers=0,
            subscribers=0,
            gateways=2,
            crowd=0,
        )

    @property
    def doses(self) -> dict[FaultKind, int]:
        share = self.requests / _FULL
        return {kind: max(1, round(dose * share)) for kind, dose in _DOSES.items()}


@dataclass
class Outcome:
    received: list[Received] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    faults: Counter[FaultKind] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    """connections between clients and gateways, by how"""
    replays: int = 0
    redis: RedisState = field(default_factory=RedisState)
    wall_s: float = 0.0


class HttpRun:
    def __init__(
        self, options: HttpOptions, folder: Path, on_tick: Callable[[HttpRun], None]
    ) -> None:
        self.options = options
        self.folder = folder
        self.outcome = Outcome()
        self._on_tick = on_tick

    async def run(self) -> Outcome:
        """Raises: TimeoutError: the processes do not start."""
        began = time.monotonic()
        options = self.options.fleet
        with (
            topology_of(options, self.folder, names(options)) as topology,
            Product(redis_url=topology.direct_url, queue=QUEUE) as product,
            Fleet(options, self.folder, topology, None) as fleet,
            Balancer([fleet.port(gateway) for gateway in fleet.gateways]) as balancer,
        ):
            plan = Plan(options.seed, options.jobs)
            journal = Journal(self.folder / "submitted-raw.jsonl")
            raw = RawAdder(topology.partitions, topology.client_of, plan, journal)
            self.progress = Progress(self.folder)
            self.scene = Scene(fleet, topology, product, raw, self.progress, balancer)
            self.injector = FaultInjector(self.scene, self.options.requests)
            await fleet.wait_up()
            await _all_ready(fleet)
            self.progress.last_news = time.monotonic()
            async with _watched(fleet.processes):
                await self._send_all(balancer.port)
            await self._look(fleet)
            self.outcome.cut = Counter(mode for _, mode in balancer.cut_log)
        self.outcome.wall_s = time.monotonic() - began
        return self.outcome

    async def _send_all(self, port: int) -> None:
        """Until all planned requests are answered and every fault has struck."""
        doses = self.options.doses
        faults = asyncio.create_task(self.injector.run(schedule(self.options.seed, doses)))
        numbers, running = count(), set[asyncio.Task[None]]()
        sent = 0
        try:
            while running or sent < self.options.requests or not faults.done():
                if faults.done():
                    faults.result()
                for task in [task for task in running if task.done()]:
                    running.discard(task)
                    task.result()
                left = self.options.requests - sent
                window = self.options.window if left > 0 else 0 if faults.done() else _EXTRA
                if len(running) < window and not self._gives_up():
                    number, sent = next(numbers), sent + 1
                    running.add(asyncio.create_task(self._follow(port, number)))
                    continue
                if self._gives_up() and not running:
                    return
                self._on_tick(self)
                await asyncio.sleep(_POLL_S)
        finally:
            faults.cancel()
            await asyncio.gather(faults, return_exceptions=True)
            self.outcome.faults = self.injector.done

    async def _follow(self, port: int, number: int) -> None:
        options = self.options
        request = draw(options.seed, number, options.responses, options.chats)
        client = Client(port, request, self._gives_up, self._on_event)
        self.outcome.received.append(client.received)
        await client.run()
        self.progress.jobs_ended += 1

    def _on_event(self) -> None:
        self.progress.events[0] += 1
        self.progress.last_news = time.monotonic()

    def _gives_up(self) -> bool:
        return self.progress.silent_s > self.options.patience_s

    async def _look(self, fleet: Fleet) -> None:
        """All is over: replay, drain, and look at what is left."""
        outcome = self.outcome
        for received in outcome.received:
            outcome.findings += check_received(received)
        outcome.findings += await self._replay(fleet)
        topology = self.scene.topology
        (partition,) = topology.partitions
        client = topology.client_of(partition)
        await came_true(lambda: not any(map(client.xlen, partition.all_jobs)), _SETTLE_S)
        read_partition(outcome.redis, client, partition, [])
        outcome.findings += check_jobs(outcome.received, outcome.redis.entries_added)
        outcome.findings += _left(outcome.redis)
        for process in fleet.processes:
            process.notice_end()
            outcome.findings += (
                Finding(Rule.PROCESSES, f"{life.name}: exit code {life.exit_code}")
                for life in process.lives
                if life.end is End.ITSELF
            )
        outcome.findings += (Finding(Rule.PROCESSES, what) for what in self.scene.surprises)

    async def _replay(self, fleet: Fleet) -> list[Finding]:
        """Drawn streams once more from each gateway, all of them or from a drawn event on."""
        await _all_ready(fleet)
        draw_ = random.Random(f"{self.options.seed}:replays")
        whole = [received for received in self.outcome.received if received.ended]
        findings: list[Finding] = []
        for received in draw_.sample(whole, min(self.options.replays, len(whole))):
            after = draw_.choice((-1, draw_.randrange(len(received.frames))))
            for gateway in fleet.gateways:
                replayed = await _replayed(fleet.port(gateway), received, after)
                findings += check_replay(received, after, replayed)
            self.outcome.replays += 1
        return findings


async def _replayed(port: int, received: Received, after: int) -> list[tuple[str, str]]:
    """Raises: Disconnected"""
    path, headers = received.resume_from(None if after < 0 else received.frames[after][0])
    async with send(port, "GET", path, headers) as answer:
        if answer.status != 200:
            return [(str(answer.status), (await answer.body()).decode(errors="replace"))]
        return [(e.id, e.data) async for e in answer.events() if e.data != "[DONE]"]


def _left(state: RedisState) -> Iterator[Finding]:
    for stream, (entries, pending) in state.streams.items():
        if entries or pending:
            yield Finding(Rule.EMPTY, f"{stream}: {entries} entries, {pending} pending")
    for letter in state.dead:
        yield Finding(Rule.EMPTY, f"dead letter {letter['code']} of {letter['id']}")


async def _all_ready(fleet: Fleet) -> None:
    """Raises: TimeoutError: a gateway does not start, or has ended."""
    async with asyncio.timeout(START_S):
        for gateway in fleet.gateways:
            while not await _ready(fleet.port(gateway)):
                await asyncio.sleep(_POLL_S)


async def _ready(port: int) -> bool:
    try:
        async with send(port, "GET", "/readyz") as answer:
            return answer.status == 200
    except Disconnected:
        return False


@asynccontextmanager
async def _watched(processes: list[ManagedProcess]) -> AsyncGenerator[None, None]:
    """Who ends by himself is started again."""
    watching = asyncio.create_task(watch(processes))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
