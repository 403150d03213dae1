"""Faults of Redis itself."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.chaos import clock
from tests.chaos.evidence import Trouble
from tests.chaos.faults.scene import Scene
from tests.chaos.plan import Fault

#: With the limit reached for so long, tokens must come all the same after the first moment.
_FULL_S = 6.0
_MOMENT_S = 0.5
#: Clients come back with their own backoff.
_BACK_S = 3.0


async def restart(scene: Scene, fault: Fault) -> str:
    async with scene.redis_lock:
        began = clock.now()
        await asyncio.to_thread(scene.broker.stop)
        await asyncio.sleep(fault.amount)
        await asyncio.to_thread(scene.broker.start)
        scene.troubles.append(Trouble(began, clock.now() + _BACK_S, str(fault.kind)))
    return f"from {began:.3f}, away for {clock.now() - began:.1f} s"


async def freeze(scene: Scene, fault: Fault) -> str:
    """The kernel accepts for it, and nobody answers."""
    async with scene.redis_lock:
        began, for_s = clock.now(), 0.5 + 3.5 * fault.amount
        pid = int((await asyncio.to_thread(scene.client.info, "server"))["process_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(for_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        scene.troubles.append(Trouble(began, clock.now() + _BACK_S, str(fault.kind)))
    return f"from {began:.3f} for {for_s:.1f} s"


async def fill_memory(scene: Scene, fault: Fault) -> str:
    """Redis refuses what needs memory; what runs and what waits is to drain all the same."""
    async with scene.redis_lock:
        used = int((await asyncio.to_thread(scene.client.info, "memory"))["used_memory"])
        limit, began = int(used * 0.9), clock.now()
        await asyncio.to_thread(scene.client.config_set, "maxmemory", limit)
        try:
            await asyncio.sleep(_MOMENT_S)
            await scene.measure(str(fault.kind), _FULL_S)
        finally:
            await asyncio.to_thread(scene.client.config_set, "maxmemory", 0)
        scene.troubles.append(Trouble(began, clock.now() + _BACK_S, str(fault.kind)))
    return f"{scene.stretches[-1].events} events in {_FULL_S:.0f} s"
