"""Faults of the files in which prefixes outlive the workers."""

import asyncio
import os
import random
from pathlib import Path

from tests.chaos.context import SECOND_TIER
from tests.chaos.faults.scene import Scene
from tests.chaos.plan import Fault

#: Of as many slots, in a file of 1,700.
_FLIPS = 200
#: Shares of the faults that cut a file off, or remove it, instead of flipping bits.
_CUT_OFF, _REMOVED = 0.1, 0.9


async def damage(scene: Scene, fault: Fault) -> str:
    return await asyncio.to_thread(_damage, scene.fleet.folder / SECOND_TIER, fault)


def _damage(folder: Path, fault: Fault) -> str:
    draw = random.Random(fault.seed)
    files = sorted(folder.glob("*")) if folder.exists() else []
    for path in files:
        size = path.stat().st_size
        if fault.amount < _CUT_OFF:
            os.truncate(path, draw.randrange(size + 1))
        elif fault.amount > _REMOVED:
            path.unlink()
        elif size:
            _flip(path, [draw.randrange(size) for _ in range(_FLIPS)])
    return f"of {len(files)} files"


def _flip(path: Path, places: list[int]) -> None:
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 0x10]) if byte else b"")
