"""How many processor cores this process may use: its affinity, and the limits of its cgroups.

OpenMP and torch know the affinity only. A container limited to two cores of a machine with 64
would get 64 threads, of which 62 wait for a core while the others wait for them.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def usable_cores(root: Path = _ROOT) -> int:
    """At least 1. Part of a core counts as one. `root` is where /proc and /sys are."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(limit) for limit in _limits(root))]))


def _limits(root: Path) -> Iterator[float]:
    """The limits of this process' cgroup and of those above it, in cores."""
    mount = root / "sys/fs/cgroup"
    for controllers, path in _memberships(root):
        if not controllers:
            for folder in _upwards(mount, path):
                yield from _quota(_words(folder / "cpu.max"))
        elif "cpu" in controllers.split(","):
            for folder in _upwards(mount / "cpu", path):
                quota = _words(folder / "cpu.cfs_quota_us")
                yield from _quota([*quota, *_words(folder / "cpu.cfs_period_us")])


def _memberships(root: Path) -> Iterator[tuple[str, str]]:
    """Controllers, none for version 2, and the path of the cgroup."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        yield controllers, path


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """A container may see its own cgroup as the root, and a path that does not exist for it."""
    inner = PurePosixPath(path.lstrip("/"))
    for folder in (inner, *inner.parents):
        yield mount / folder


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _quota(words: list[str]) -> Iterator[float]:
    """Of "<quota> <period>", in microseconds; "max" and -1 are no limit."""
    if len(words) == 2 and words[0].isdecimal() and int(words[1]) > 0:
        yield int(words[0]) / int(words[1])
