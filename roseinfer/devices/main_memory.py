"""How much main memory there is to use: of the machine, and of the container.

/proc/meminfo tells of the machine, also inside a container with a limit of its own.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path

#: Where the system does not tell: a cautious guess.
_UNKNOWN = 4 * 1024**3
#: The names of (limit, usage) in a control group of version 2 and of version 1.
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that may be taken: what the machine has, or the tightest limit of a control group that
    this process is in leaves. `root`: the file system."""
    available = _of_machine(root, "MemAvailable")
    left = [max(0, most - used) for most, used in _limits(root)]
    return min([_UNKNOWN if available is None else available, *left])


def total_memory(root: Path = Path("/")) -> int | None:
    """Bytes that there would be if nothing took any; None where the system does not tell."""
    machine = _of_machine(root, "MemTotal")
    return None if machine is None else min([machine, *(most for most, _ in _limits(root))])


def release_freed_memory() -> None:
    """Give the system what the C library keeps of memory that was freed, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _of_machine(root: Path, name: str) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        kib = next(line.split()[1] for line in lines if line.startswith(f"{name}:"))
        return int(kib) * 1024
    except (OSError, StopIteration):
        return None


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """The limit of each control group that has one, and how much of it is taken."""
    for group in _groups(root):
        for limit, usage in _FILES:
            try:
                most = int((group / limit).read_text(encoding="ascii"))
                used = int((group / usage).read_text(encoding="ascii"))
                stat = (group / "memory.stat").read_text(encoding="ascii")
            except (OSError, ValueError):  # no such file, or "max"
                continue
            # Pages of files that nobody uses are given back when memory is needed.
            files = dict(line.split() for line in stat.splitlines()).get("inactive_file", 0)
            yield most, used - int(files)


def _groups(root: Path) -> Iterator[Path]:
    """Every control group whose limits hold for this process. A container sees its own as the root
    of them all."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            own = top / path.lstrip("/")
            yield from (one for one in (own, *own.parents) if one == top or top in one.parents)
