"""Entries in the job streams that no client of ours would add."""

from tests.chaos.faults.scene import Scene
from tests.chaos.plan import Fault, FaultKind


async def add(scene: Scene, fault: Fault) -> str:
    async with scene.redis_lock:  # it is up, and stays up meanwhile
        match fault.kind:
            case FaultKind.GARBAGE:
                return scene.raw.add_garbage(fault.amount, fault.seed, _innocent(scene, fault))
            case FaultKind.TWICE:
                return scene.raw.add_twice(fault.seed)
            case _:
                return scene.raw.add_twins()


def _innocent(scene: Scene, fault: Fault) -> str | None:
    running = scene.progress.running()
    submitted = scene.progress.submitted
    if not running:
        return None
    number = running[fault.target % len(running)]
    scene.victims.add(number)
    return submitted[number]
