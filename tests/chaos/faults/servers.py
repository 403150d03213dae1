"""Faults of Redis itself."""

import asyncio
import os
import signal

from tests.chaos import clock
from tests.chaos.faults.scene import BACK_S, Scene
from tests.chaos.plan import Fault
from tests.chaos.trouble import Trouble

#: One node of a cluster is frozen for so long, and the others have jobs left for so long.
_FROZEN_S = 12.0
_WORK_LEFT_S = 6.0
#: With the limit reached for so long, tokens must come all the same after the first moment.
_FULL_S = 6.0
_MOMENT_S = 0.5


async def restart(scene: Scene, fault: Fault) -> str:
    async with scene.redis_lock:
        began = clock.now()
        node, _, whose = scene.node(fault.target)
        await asyncio.to_thread(node.stop)
        await asyncio.sleep(fault.amount)
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(scene.topology.wait_ok)
        ended = clock.now() + BACK_S
        scene.troubles.append(Trouble(began, ended, str(fault.kind), None, whose))
        away_s = clock.now() - began
        await asyncio.sleep(BACK_S)
    return f"from {began:.3f}, away for {away_s:.1f} s"


async def freeze(scene: Scene, fault: Fault) -> str:
    """The kernel accepts for it, and nobody answers. The other nodes of a cluster go on."""
    async with scene.redis_lock:
        _, client, whose = scene.node(fault.target)
        await scene.workers_serve()
        others = frozenset(p.index for p in scene.topology.partitions) - whose
        for_s = _FROZEN_S if others else 0.5 + 3.5 * fault.amount
        pid = int((await asyncio.to_thread(client.info, "server"))["process_id"])
        began = clock.now()
        os.kill(pid, signal.SIGSTOP)
        try:
            if others:
                await scene.measure(f"{fault.kind}, one of several", _WORK_LEFT_S, others)
            await asyncio.sleep(for_s - (clock.now() - began))
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.to_thread(scene.topology.wait_ok)
        ended = clock.now() + BACK_S
        scene.troubles.append(Trouble(began, ended, str(fault.kind), None, whose))
        await asyncio.sleep(BACK_S)
    return f"from {began:.3f} for {for_s:.1f} s"


async def fill_memory(scene: Scene, fault: Fault) -> str:
    """Redis refuses what needs memory; what runs and what waits is to drain all the same."""
    async with scene.redis_lock:
        _, client, whose = scene.node(fault.target)
        used = int((await asyncio.to_thread(client.info, "memory"))["used_memory"])
        limit, began = int(used * 0.9), clock.now()
        await asyncio.to_thread(client.config_set, "maxmemory", limit)
        try:
            await asyncio.sleep(_MOMENT_S)
            await scene.measure(str(fault.kind), _FULL_S, whose)
        finally:
            await asyncio.to_thread(client.config_set, "maxmemory", 0)
        ended = clock.now() + BACK_S
        scene.troubles.append(Trouble(began, ended, str(fault.kind), None, whose))
    return f"{scene.stretches[-1].events} events in {_FULL_S:.0f} s"


async def fail_over(scene: Scene, fault: Fault) -> str:
    """The primary dies for good, as far as its clients are concerned; a Sentinel names another."""
    async with scene.redis_lock:
        began = clock.now()
        await asyncio.to_thread(scene.topology.fail_over)
        ended = clock.now()
        scene.failovers.append((began, ended))
        scene.troubles.append(Trouble(began, ended + BACK_S, str(fault.kind)))
    return f"from {began:.3f}, in {ended - began:.1f} s"
