"""Faults of the gateways, and between them and their clients."""

import asyncio
import random

from tests.chaos import clock
from tests.chaos.context import DRAIN_LIMIT_S
from tests.chaos.faults import processes
from tests.chaos.faults.network import silence_for
from tests.chaos.faults.scene import Scene
from tests.chaos.plan import Fault
from tests.support.proxy import Cut, CutMode, Proxy


async def kill(scene: Scene, fault: Fault) -> str:
    return await processes.kill(scene, "gateway", fault)


async def stop(scene: Scene, fault: Fault) -> str:
    async with scene.acquired("gateway", fault.target) as process:
        return await processes.stop(process, 1.0 + 4 * fault.amount)


async def drain(scene: Scene, fault: Fault) -> str:
    """Its streams get the grace period, then it closes them."""
    async with scene.acquired("gateway", fault.target) as process:
        await process.drain()
        life = process.life
        process.start()
    if life.drain_s is not None and life.drain_s > DRAIN_LIMIT_S:
        scene.surprises.append(f"{life.name} took {life.drain_s:.1f} s to end at SIGTERM")
    return f"{life.name}, {life.drain_s or 0:.1f} s, exit code {life.exit_code}"


async def cut_clients(scene: Scene, fault: Fault) -> str:
    draw = random.Random(fault.seed)
    mode: CutMode = draw.choice(("reply", "reply", "reply", "request", "mute", "idle"))
    count, share, for_s = draw.randint(1, 8), draw.random() * 0.99, 0.2 + 2 * draw.random()
    cut = Cut(mode, count, share, reset=draw.random() < 0.5, for_s=for_s)
    await asyncio.wrap_future(_balancer(scene).cut(cut))
    return f"{count} connections, {mode}"


async def silence_clients(scene: Scene, fault: Fault) -> str:
    draw = random.Random(fault.seed)
    began, lost = clock.now(), draw.random() < 0.5
    await silence_for([_balancer(scene)], 0.5 + 3 * fault.amount, lost=lost)
    return f"for {clock.now() - began:.1f} s, then {'lost' if lost else 'late'}"


def _balancer(scene: Scene) -> Proxy:
    """Raises: ValueError"""
    if scene.balancer is None:
        raise ValueError("there are no gateways in this run")
    return scene.balancer
