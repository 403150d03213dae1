"""Carries out the schedule of faults, paced by how many jobs have ended."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tests.chaos import clock
from tests.chaos.faults import disk, entries, gateways, jobs, network, processes, servers
from tests.chaos.faults.scene import Scene
from tests.chaos.plan import Fault, FaultKind

#: The least time between two faults.
_GAP_S = 0.1
_POLL_S = 0.02

#: What each does, and says that it did.
CARRY_OUT: dict[FaultKind, Callable[[Scene, Fault], Awaitable[str]]] = {
    FaultKind.KILL_WORKER: processes.kill_worker,
    FaultKind.KILL_PRODUCER: processes.kill_producer,
    FaultKind.KILL_SUBSCRIBER: processes.kill_subscriber,
    FaultKind.STOP_WORKER: processes.stop_worker,
    FaultKind.STOP_SUBSCRIBER: processes.stop_subscriber,
    FaultKind.DRAIN: processes.drain,
    FaultKind.STAND_STILL: processes.stand_still,
    FaultKind.SIGNALS: processes.signal_client,
    FaultKind.FORK: processes.fork_client,
    FaultKind.NEIGHBOUR: jobs.be_a_neighbour,
    FaultKind.HUNG_STEP: processes.hang_step,
    FaultKind.HUNG_TOKENIZER: processes.hang_tokenizer,
    FaultKind.CUT: network.cut,
    FaultKind.SLOW: network.slow,
    FaultKind.SILENCE: network.silence,
    FaultKind.LOST_REPLY: network.lose_replies,
    FaultKind.RESTART_REDIS: servers.restart,
    FaultKind.FREEZE_REDIS: servers.freeze,
    FaultKind.GARBAGE: entries.add,
    FaultKind.TWICE: entries.add,
    FaultKind.TWINS: entries.add,
    FaultKind.RETRY: jobs.retry,
    FaultKind.EXPIRE: jobs.expire,
    FaultKind.FAILOVER: servers.fail_over,
    FaultKind.MEMORY: servers.fill_memory,
    FaultKind.KILL_LISTENER: processes.kill_listener,
    FaultKind.CROWD: processes.crowd,
    FaultKind.KILL_GATEWAY: gateways.kill,
    FaultKind.STOP_GATEWAY: gateways.stop,
    FaultKind.DRAIN_GATEWAY: gateways.drain,
    FaultKind.CUT_CLIENT: gateways.cut_clients,
    FaultKind.SILENCE_CLIENTS: gateways.silence_clients,
    FaultKind.DAMAGE: disk.damage,
}
#: What is measured while they strike must be their doing: no other fault strikes meanwhile.
_ALONE = {FaultKind.MEMORY, FaultKind.KILL_LISTENER}


@dataclass
class FaultInjector:
    scene: Scene
    jobs: int
    at_once: int = 4
    """how many faults may overlap"""
    interrupted: bool = False
    """none begins any more"""
    done: Counter[FaultKind] = field(default_factory=Counter)
    log: list[tuple[float, str]] = field(default_factory=list)

    async def run(self, schedule: Sequence[Fault]) -> None:
        gate = asyncio.Semaphore(self.at_once)
        async with asyncio.TaskGroup() as group:
            for fault in schedule:
                while not self._is_due(fault):
                    await asyncio.sleep(_POLL_S)
                permits = self.at_once if fault.kind in _ALONE else 1
                for _ in range(permits):
                    await gate.acquire()
                if self.interrupted:
                    return
                strike = group.create_task(self._strike(fault, gate, permits))
                if fault.kind in _ALONE:
                    await strike
                await asyncio.sleep(_GAP_S)

    def _is_due(self, fault: Fault) -> bool:
        return self.interrupted or self.scene.progress.jobs_ended >= fault.at * self.jobs

    async def _strike(self, fault: Fault, gate: asyncio.Semaphore, permits: int) -> None:
        if fault.kind in _ALONE:
            await self.scene.workers_serve()
        try:
            detail = await CARRY_OUT[fault.kind](self.scene, fault)
        except Exception as error:  # noqa: BLE001 - a finding: the run goes on to its verdict
            detail = f"raised {error!r}"
            self.scene.surprises.append(f"#{fault.number} {fault.kind} {detail}")
        finally:
            for _ in range(permits):
                gate.release()
        self.done[fault.kind] += 1
        self.log.append((clock.now(), f"#{fault.number} {fault.kind}: {detail}"))
