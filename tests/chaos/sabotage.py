"""The product with one of its safeguards taken out: the harness must notice. For tests only."""

import asyncio
import re
import shutil
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from tests.chaos.context import Sabotage

#: What a queue without fencing does with a worker that has lost its job: stores what it says
#: where the log ends.
_FENCED = re.compile(r"if known\[1\] ~= take_id then\s+outcome = 'FENCED'\s+else\s")
_STORED = """if known[1] ~= take_id then index = tonumber(known[2] or '0') or 0 end
    if false then
      outcome = 'FENCED'
    else
"""

#: The same for an item of one event.
_ONE_FENCED = re.compile(r"if known\[1\] ~= take_id then\s+outcome = 'FENCED'\s+elseif")
_ONE_STORED = """if known[1] ~= take_id then
      after = string.format('%d', after - index + (known[2] or 0))
      index = known[2] or '0'
    end
    if"""

#: No tenant has a limit of running jobs, wherever it is looked at.
_CAPPED = re.compile(r"tenant\.max_bytes = words\[2\], ")
_UNCAPPED = "tenant.max_bytes = nil, "

#: Scripts that bring work to an end run though Redis has no memory left.
_ALLOWED = re.compile(r"^#!lua flags=allow-oom\n")


def apply(what: Sabotage, folder: Path) -> None:
    """In a worker; `folder` is its own to write to. `log` concerns subscribers alone."""
    if what == "renewal":
        _no_renewal()
    elif what == "fencing":
        _patched(folder, {"append": [(_FENCED, _STORED), (_ONE_FENCED, _ONE_STORED)]})
    elif what == "memory":
        names = ("append", "fetch", "take", "reclaim", "renew")
        _patched(folder, {name: [(_ALLOWED, "#!lua\n")] for name in names})
    elif what == "clock":
        _own_clock()
    elif what == "caps":
        _patched(folder, {"common_tenants": [(_CAPPED, _UNCAPPED)]})


def _no_renewal() -> None:
    from rose_worker.leases import LeaseKeeper

    async def sleep_on(_: LeaseKeeper) -> None:
        await asyncio.Event().wait()

    setattr(LeaseKeeper, "run", sleep_on)  # noqa: B010 - says that it is on purpose


def _own_clock() -> None:
    """A worker judges deadlines by its own clock rather than by Redis'."""
    from rose.protocol.calls import Taken

    def seconds_until(_: Taken, at_ms: int) -> float:
        return at_ms / 1000 - time.time()

    setattr(Taken, "seconds_until", seconds_until)  # noqa: B010


def _patched(folder: Path, changes: Mapping[str, list[tuple[re.Pattern[str], str]]]) -> None:
    """From now on the scripts are those in `folder`, in some of which something is different."""
    import rose.protocol.scripts

    folder.mkdir()
    for script in Path(str(files("rose.protocol.scripts"))).glob("*.lua"):
        shutil.copy(script, folder)
    for name, patches in changes.items():
        script = folder / f"{name}.lua"
        for pattern, replacement in patches:
            source, patched = pattern.subn(replacement, script.read_text())
            if patched != 1:
                raise ValueError(
                    f"the sabotage does not fit {name}.lua any more: {pattern.pattern}"
                )
            script.write_text(source)
    setattr(rose.protocol.scripts, "files", lambda _: folder)  # noqa: B010
    read_scripts_anew()


def read_scripts_anew() -> None:
    from rose.protocol import scripts

    scripts.load.cache_clear()
    scripts._declarations.cache_clear()
