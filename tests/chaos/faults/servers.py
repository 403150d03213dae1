"""Faults of Redis itself."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.chaos import clock
from tests.chaos.evidence import Trouble
from tests.chaos.faults.scene import Scene
from tests.chaos.plan import Fault

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
