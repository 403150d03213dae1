"""Carries out the schedule of faults, paced by how many jobs have ended."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rose_cli.demo.broker import EmbeddedBroker
from tests.chaos.context import LEASE_S
from tests.chaos.evidence import Trouble
from tests.chaos.fleet import Fleet
from tests.chaos.managed_process import ManagedProcess
from tests.chaos.plan import Fault, FaultKind
from tests.chaos.progress import Progress
from tests.chaos.raw import RawAdder
from tests.support.proxy import Cut, CutMode

#: How many faults may overlap, and the least time between two of them.
_AT_ONCE = 4
_GAP_S = 0.1
#: A worker lives at least this long before a fault strikes it, so that it has jobs to lose.
_UP_S = 1.2
_POLL_S = 0.02


@dataclass
class FaultInjector:
    fleet: Fleet
    broker: EmbeddedBroker
    raw: RawAdder
    progress: Progress
    jobs: int
    done: Counter[FaultKind] = field(default_factory=Counter)
    log: list[tuple[float, str]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    zombies_refused: int = 0
    """Workers that awoke from SIGSTOP, went on with jobs they had lost, and were refused."""
    _redis: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, schedule: Sequence[Fault]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for fault in schedule:
                while self.progress.jobs_ended < fault.at * self.jobs:
                    await asyncio.sleep(_POLL_S)
                await gate.acquire()
                group.create_task(self._strike(fault, gate))
                await asyncio.sleep(_GAP_S)

    async def _strike(self, fault: Fault, gate: asyncio.Semaphore) -> None:
        carry_out: dict[FaultKind, Callable[[Fault], Awaitable[str]]] = {
            FaultKind.KILL_WORKER: lambda f: self._kill("worker", f),
            FaultKind.KILL_PRODUCER: lambda f: self._kill("producer", f),
            FaultKind.KILL_SUBSCRIBER: lambda f: self._kill("subscriber", f),
            FaultKind.STOP_WORKER: self._stop,
            FaultKind.RESTART_REDIS: self._restart_redis,
            FaultKind.CUT: self._cut,
            FaultKind.SLOW: self._slow,
            FaultKind.DRAIN: self._drain,
            FaultKind.GARBAGE: self._raw,
            FaultKind.TWICE: self._raw,
            FaultKind.TWINS: self._raw,
        }
        try:
            detail = await carry_out[fault.kind](fault)
        finally:
            gate.release()
        self.done[fault.kind] += 1
        self.log.append((time.time(), f"#{fault.number} {fault.kind}: {detail}"))

    async def _kill(self, role: str, fault: Fault) -> str:
        async with self._acquired(role, fault.target) as process:
            at = time.time()
            while not process.kill():  # it has just died by itself
                process.notice_end()
                process.start()
                await asyncio.sleep(_UP_S)
            await asyncio.sleep(fault.amount * 0.3)
            process.start()
        return f"{process.lives[-2].name} at {at:.3f}"

    async def _stop(self, fault: Fault) -> str:
        async with self._acquired("worker", fault.target) as process:
            refused = await self._refused(process)
            life, began = process.life, time.time()
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(LEASE_S * 1.2 + fault.amount)
            process.signal(signal.SIGCONT)
            life.stopped.append((began, time.time() + 0.5))
            await asyncio.sleep(0.5)  # it wakes up and finds out
            self.zombies_refused += await self._refused(process) > refused
        return f"{life.name} from {began:.3f} to {life.stopped[-1][1] - 0.5:.3f}"

    async def _refused(self, worker: ManagedProcess) -> float:
        gauges = await asyncio.to_thread(self.fleet.gauges, worker)
        return gauges.get("rose_fenced_appends_total", 0.0)

    async def _drain(self, fault: Fault) -> str:
        async with self._acquired("worker", fault.target) as process:
            await process.drain()
            life = process.life
            process.start()
        return f"{life.name}, {life.drain_s or 0:.1f} s"

    async def _restart_redis(self, fault: Fault) -> str:
        async with self._redis:
            began = time.time()
            await asyncio.to_thread(self.broker.stop)
            await asyncio.sleep(fault.amount)
            await asyncio.to_thread(self.broker.start)
            # Clients come back with their own backoff.
            self.troubles.append(Trouble(began, time.time() + 3.0, str(fault.kind)))
        return f"from {began:.3f}, away for {time.time() - began:.1f} s"

    async def _cut(self, fault: Fault) -> str:
        """Everybody's connections in turn; a muted one takes longer than a lease, or less."""
        draw = random.Random(fault.seed)
        process = self.fleet.processes[fault.target % len(self.fleet.processes)]
        mode: CutMode = draw.choice(("reply", "reply", "request", "request", "mute", "idle"))
        count, share = draw.randint(1, 4), draw.random() * 0.99
        for_s = 0.2 + draw.random() * LEASE_S * 0.8
        cut = Cut(mode, count, share, reset=draw.random() < 0.5, for_s=for_s)
        self.fleet.proxies[process.name].cut(cut)
        await asyncio.sleep(for_s if mode == "mute" else 0.3)
        return f"{process.name}: {count} connections, {mode}"

    async def _slow(self, fault: Fault) -> str:
        draw = random.Random(fault.seed)
        delay_s, for_s = 0.05 + 0.25 * fault.amount, 1 + draw.random() * 2
        began = time.time()
        for proxy in self.fleet.proxies.values():
            proxy.delay_s = proxy.request_delay_s = delay_s
        await asyncio.sleep(for_s)
        for proxy in self.fleet.proxies.values():
            proxy.heal()
        self.troubles.append(Trouble(began, time.time() + 2.0, str(fault.kind)))
        return f"{delay_s:.2f} s late for {for_s:.1f} s"

    async def _raw(self, fault: Fault) -> str:
        async with self._redis:  # it is up, and stays up meanwhile
            match fault.kind:
                case FaultKind.GARBAGE:
                    return self.raw.add_garbage(fault.amount, fault.seed, self._innocent(fault))
                case FaultKind.TWICE:
                    return self.raw.add_twice(fault.seed)
                case _:
                    return self.raw.add_twins()

    def _innocent(self, fault: Fault) -> str | None:
        running = self.progress.running()
        return self.progress.submitted[running[fault.target % len(running)]] if running else None

    @asynccontextmanager
    async def _acquired(self, role: str, target: int) -> AsyncIterator[ManagedProcess]:
        """The one that the fault is meant for, or the next one that no other fault has."""
        processes = [process for process in self.fleet.processes if process.role == role]
        start = target % len(processes)
        while True:
            for process in processes[start:] + processes[:start]:
                if not process.lock.locked() and process.up_s > _UP_S and process.serving:
                    async with process.lock:
                        yield process
                    return
            await asyncio.sleep(_POLL_S)
