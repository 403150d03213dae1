"""Faults between the processes and Redis."""

import asyncio
import random
from collections.abc import Iterable

from rose.protocol.scripts import load
from tests.chaos import clock
from tests.chaos.context import LEASE_S
from tests.chaos.faults.scene import BACK_S, Scene
from tests.chaos.plan import Fault
from tests.chaos.trouble import Trouble
from tests.support.proxy import Cut, CutMode, Proxy

#: By the role of the process: the calls whose replies are lost. Most jobs are handed out by fetch.
_CALLS = {
    "worker": ("fetch", "fetch", "take", "append", "renew"),
    "producer": ("submit",),
}
#: A call that is never made is waited for no longer.
_CALL_WAIT_S = 3.0
_POLL_S = 0.02


async def cut(scene: Scene, fault: Fault) -> str:
    """Everybody's connections in turn; a muted one takes longer than a lease, or less."""
    draw = random.Random(fault.seed)
    name, proxy = scene.proxy(fault.target)
    mode: CutMode = draw.choice(("reply", "reply", "request", "request", "mute", "idle"))
    count, share = draw.randint(1, 4), draw.random() * 0.99
    for_s = 0.2 + draw.random() * LEASE_S * 0.8
    proxy.cut(Cut(mode, count, share, reset=draw.random() < 0.5, for_s=for_s))
    await asyncio.sleep(for_s if mode == "mute" else 0.3)
    return f"{name}: {count} connections, {mode}"


async def slow(scene: Scene, fault: Fault) -> str:
    draw = random.Random(fault.seed)
    delay_s, for_s = 0.05 + 0.25 * fault.amount, 1 + draw.random() * 2
    began = clock.now()
    for proxy in scene.topology.proxies.values():
        proxy.delay_s = proxy.request_delay_s = delay_s
    await asyncio.sleep(for_s)
    for proxy in scene.topology.proxies.values():
        proxy.delay_s = proxy.request_delay_s = 0.0
    scene.troubles.append(Trouble(began, clock.now() + 2.0, str(fault.kind)))
    return f"{delay_s:.2f} s late for {for_s:.1f} s"


async def silence(scene: Scene, fault: Fault) -> str:
    """Packets are dropped both ways, for one process or for all of them: nobody is refused."""
    draw = random.Random(fault.seed)
    everybody, lost = draw.random() < 0.25, draw.random() < 0.5
    for_s = LEASE_S * (0.3 + 1.5 * fault.amount)
    name, one = scene.proxy(fault.target)
    if everybody:
        async with scene.redis_lock:
            began = clock.now()
            await silence_for(scene.topology.proxies.values(), for_s, lost=lost)
            scene.troubles.append(Trouble(began, clock.now() + BACK_S, str(fault.kind)))
            await asyncio.sleep(BACK_S)
    else:
        began = clock.now()
        await silence_for([one], for_s, lost=lost)
        # Clients notice by their timeout.
        ended, what = clock.now() + BACK_S, str(fault.kind)
        scene.troubles.append(scene.topology.trouble(name, began, ended, what))
    whose, then = "everybody" if everybody else name, "lost" if lost else "late"
    return f"{whose} for {for_s:.1f} s, then {then}"


async def silence_for(proxies: Iterable[Proxy], for_s: float, *, lost: bool) -> None:
    for proxy in proxies:
        proxy.silence()
    await asyncio.sleep(for_s)
    for proxy in proxies:
        proxy.speak(lost=lost)


async def lose_replies(scene: Scene, fault: Fault) -> str:
    """Redis does what it is told, up to three times in a row, and nobody hears of it."""
    draw = random.Random(fault.seed)
    target = fault.target
    name, proxy = scene.proxy(target, *_CALLS)
    while proxy.swallow is not None:  # another fault of this kind has it
        await asyncio.sleep(_POLL_S)
        target += 1
        name, proxy = scene.proxy(target, *_CALLS)
    every = [call for calls in _CALLS.values() for call in calls]
    call = draw.choice(_CALLS.get(name.partition("-")[0], every))
    times = draw.randint(1, 3)
    proxy.swallow_times, proxy.swallow = times, _sha1(scene, call).encode()
    deadline = clock.now() + _CALL_WAIT_S
    while proxy.swallow is not None and clock.now() < deadline:
        await asyncio.sleep(_POLL_S)
    left = 0 if proxy.swallow is None else proxy.swallow_times
    proxy.swallow, proxy.swallow_times = None, 1
    scene.seen[f"lost replies of {call}"] += times - left
    return f"{name}: {times - left} replies of {call}"


def _sha1(scene: Scene, call: str) -> str:
    clustered = len(scene.topology.nodes) > 1
    return load(call, sharded=clustered).sha1
