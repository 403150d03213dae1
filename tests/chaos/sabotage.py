"""The product with one of its safeguards taken out: the harness must notice. For tests only."""

from __future__ import annotations

import asyncio
import re
import shutil
from importlib.resources import files
from pathlib import Path

from tests.chaos.context import Sabotage

#: What a queue without fencing does with a worker that has lost its job: stores what it says
#: where the log ends.
_FENCED = re.compile(r"if known\[1\] ~= epoch then\s+outcome = 'FENCED'")
_STORED = """if known[1] ~= epoch then index = tonumber(known[2] or '0') or 0 end
  if false then
    outcome = 'FENCED'"""


def apply(what: Sabotage, folder: Path) -> None:
    """In a worker; `folder` is its own to write to. `log` concerns subscribers alone."""
    if what == "renewal":
        _no_renewal()
    elif what == "fencing":
        _no_fencing(folder)


def _no_renewal() -> None:
    from rose_worker.leases import LeaseKeeper

    async def sleep_on(_: LeaseKeeper) -> None:
        await asyncio.Event().wait()

    setattr(LeaseKeeper, "run", sleep_on)  # noqa: B010 - says that it is on purpose


def _no_fencing(folder: Path) -> None:
    """Append takes the tokens of a worker that has lost the job. Retries stay idempotent."""
    import rose.protocol.scripts

    folder.mkdir()
    for script in Path(str(files("rose.protocol.scripts"))).glob("*.lua"):
        shutil.copy(script, folder)
    append = folder / "append.lua"
    source, patched = _FENCED.subn(_STORED, append.read_text())
    if patched != 1:
        raise ValueError("the sabotage does not fit append.lua any more: change _FENCED")
    append.write_text(source)
    setattr(rose.protocol.scripts, "files", lambda _: folder)  # noqa: B010
    rose.protocol.scripts.load.cache_clear()
