"""Faults of a process: it dies, stops, is told to go, or something in it hangs."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from heapq import nlargest
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tests.chaos import clock
from tests.chaos.context import CROWD, FORKED, HANDLED, LEASE_S, STALL_S, hang_file
from tests.chaos.faults.scene import UP_S, Scene
from tests.chaos.managed_process import ManagedProcess
from tests.chaos.plan import RAW_BASE, Fault
from tests.chaos.trouble import Trouble

#: The queue gets so long to run dry, its idle workers to settle who listens, and the next jobs to
#: be heard of when he is dead.
_DRY_S = 20.0
_LISTENS_S = 1.0
_HEARD_S = 4.0
_HEARD_PER_S = 1.0
_POLL_S = 0.05
#: Jobs that a crowd follows.
_FOLLOWED = 90
#: So long after the last of its jobs has ended the streams of a crowd have ended, too.
_CROWD_S = 90.0
#: A worker says by then that it stands still, on a machine that stalls, too.
_SAYS_S = 30.0
_SIGNALS = 50
#: After a hang a worker finds out what it has lost.
_AFTERMATH_S = 0.5


async def kill_worker(scene: Scene, fault: Fault) -> str:
    return await kill(scene, "worker", fault)


async def kill_producer(scene: Scene, fault: Fault) -> str:
    return await kill(scene, "producer", fault)


async def kill_subscriber(scene: Scene, fault: Fault) -> str:
    return await kill(scene, "subscriber", fault)


async def kill_listener(scene: Scene, fault: Fault) -> str:
    """The queue runs dry; the worker that listens for all the idle ones dies; jobs come again."""
    scene.holds = True
    try:
        dry = await _ran_dry(scene)
        await asyncio.sleep(_LISTENS_S)
        async with scene.redis_lock:
            partition, client = scene.partition(fault.target)
            name: Any = await asyncio.to_thread(client.get, partition.idle[0])
        index = int(name.decode().partition("-")[2].partition(".")[0]) if name else fault.target
        said = await kill(scene, "worker", replace(fault, target=index))
    finally:
        scene.holds = False
    await scene.measure(str(fault.kind), _HEARD_S, min_per_s=_HEARD_PER_S)
    whom = "the listener" if name else "one of the idle"
    return f"{said}, {whom}{'' if dry else ', though jobs waited'}"


async def _ran_dry(scene: Scene) -> bool:
    """Wait until no entry waits to be read. False: it took too long."""

    def waiting() -> int:
        topology = scene.topology
        groups = [
            topology.client_of(partition).xinfo_groups(stream)[0]
            for partition in topology.partitions
            for stream in partition.all_jobs
        ]
        return sum(int(group["lag"] or 0) for group in groups)

    deadline = clock.now() + _DRY_S
    while clock.now() < deadline:
        async with scene.redis_lock:
            if await asyncio.to_thread(waiting) == 0:
                return True
        await asyncio.sleep(_POLL_S)
    return False


async def kill(scene: Scene, role: str, fault: Fault) -> str:
    async with scene.acquired(role, fault.target) as process:
        at = clock.now()
        while not process.kill():  # it has just died by itself
            process.notice_end()
            process.start()
            await asyncio.sleep(UP_S)
        await asyncio.sleep(fault.amount * 0.3)
        process.start()
    return f"{process.lives[-2].name} at {at:.3f}"


async def stop_worker(scene: Scene, fault: Fault) -> str:
    async with scene.acquired("worker", fault.target) as process:
        refused = await scene.fenced(process)
        said = await stop(process, LEASE_S * 1.2 + fault.amount)
        await asyncio.sleep(_AFTERMATH_S)
        scene.seen["zombies refused"] += await scene.fenced(process) > refused
    return said


async def stop_subscriber(scene: Scene, fault: Fault) -> str:
    """What it does not read piles up in Redis, which hangs up on it at its limit."""
    async with scene.acquired("subscriber", fault.target) as process:
        return await stop(process, 1.0 + 4 * fault.amount)


async def stop(process: ManagedProcess, for_s: float) -> str:
    life, began = process.life, clock.now()
    process.signal(signal.SIGSTOP)
    await asyncio.sleep(for_s)
    process.signal(signal.SIGCONT)
    life.stopped.append((began, clock.now() + _AFTERMATH_S))
    return f"{life.name} from {began:.3f} to {life.stopped[-1][1] - _AFTERMATH_S:.3f}"


async def stand_still(scene: Scene, fault: Fault) -> str:
    """A worker's event loop does nothing past its lease, while its engine and other threads go on:
    it must say that it is not ready."""
    async with scene.acquired("worker", fault.target) as process:
        life, began = process.life, clock.now()
        with _existing(hang_file(scene.fleet.folder, process.name, "loop")):
            await asyncio.sleep(LEASE_S * 1.2 + fault.amount)
            port = scene.fleet.port(process)
            while (ready := await asyncio.to_thread(_is_ready, port)) and _since(began) < _SAYS_S:
                await asyncio.sleep(_POLL_S)
        await asyncio.sleep(_AFTERMATH_S)
        life.stopped.append((began, clock.now()))
    if ready:
        scene.surprises.append(f"{life.name} stood still for {_SAYS_S:g} s and was ready")
    return f"{life.name} from {began:.3f} for {_since(began):.1f} s"


def _since(began: float) -> float:
    return clock.now() - began


def _is_ready(port: int) -> bool:
    with closing(HTTPConnection("127.0.0.1", port, timeout=_SAYS_S)) as connection:
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False


async def signal_client(scene: Scene, fault: Fault) -> str:
    """With a handler in Python: whatever waits is interrupted, and goes on."""
    async with scene.acquired(_client(fault), fault.target) as process:
        for _ in range(_SIGNALS):
            process.signal(HANDLED)
            await asyncio.sleep(0.01)
    return f"{_SIGNALS} to {process.life.name}"


async def fork_client(scene: Scene, fault: Fault) -> str:
    """In the middle of whatever it does. The child closes what it has inherited."""
    async with scene.acquired(_client(fault), fault.target) as process:
        process.signal(FORKED)
    return process.life.name


def _client(fault: Fault) -> str:
    return "producer" if fault.seed % 3 == 0 else "subscriber"


async def drain(scene: Scene, fault: Fault) -> str:
    async with scene.acquired("worker", fault.target) as process:
        await process.drain()
        life = process.life
        process.start()
    return f"{life.name}, {life.drain_s or 0:.1f} s"


async def hang_step(scene: Scene, fault: Fault) -> str:
    """The device is stuck: a step begins and does not end until after others have its jobs."""
    async with scene.acquired("worker", fault.target) as process:
        refused = await scene.fenced(process)
        for_s = STALL_S + LEASE_S * 3 + 2 * fault.amount
        said = await _hang(scene, process, "step", for_s)
        scene.seen["hung workers refused"] += await scene.fenced(process) > refused
    return said


async def hang_tokenizer(scene: Scene, fault: Fault) -> str:
    async with scene.acquired("worker", fault.target) as process:
        return await _hang(scene, process, "tokenizer", LEASE_S * (0.5 + fault.amount))


async def _hang(scene: Scene, process: ManagedProcess, what: str, for_s: float) -> str:
    began = clock.now()
    with _existing(hang_file(scene.fleet.folder, process.name, what)):
        await asyncio.sleep(for_s)
    await asyncio.sleep(_AFTERMATH_S)
    scene.troubles.append(Trouble(began, clock.now(), f"hung {what}", process.name))
    return f"{process.life.name} from {began:.3f} for {for_s:.1f} s"


@contextmanager
def _existing(path: Path) -> Iterator[None]:
    path.touch()
    try:
        yield
    finally:
        path.unlink()


async def crowd(scene: Scene, fault: Fault) -> str:
    """A process with thousands of streams, which ends when all of them have."""
    process, began = scene.fleet.crowd, clock.now()
    async with process.lock:
        async with scene.redis_lock:  # nobody lets results expire just now
            jobs = _latest_jobs(scene)
            scene.crowd_from = min(jobs, default=0)
        (scene.fleet.folder / CROWD).write_text(json.dumps(jobs))
        try:
            process.start()
            ended = clock.now()
            while not process.notice_end() and clock.now() < ended + _CROWD_S:
                if not jobs.keys() <= scene.progress.ended.keys():
                    ended = clock.now()
                await asyncio.sleep(_POLL_S)
            scene.unfinished_crowds += process.kill()
        finally:
            scene.crowd_from = None
    return f"{process.life.end} after {clock.now() - began:.1f} s"


def _latest_jobs(scene: Scene) -> dict[int, str]:
    """Those that were submitted through the client last, by number, and whose results are there."""
    submitted, settled = scene.progress.submitted, scene.progress.settled
    there = [n for n in submitted if n < RAW_BASE and n not in scene.expired and n not in settled]
    return {number: submitted[number] for number in nlargest(_FOLLOWED, there)}
