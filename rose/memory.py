"""How much memory this process takes, and how a size is written."""

import resource
import sys
from pathlib import Path


def used_memory() -> int:
    """Bytes that are resident; where the system does not tell, the most that were."""
    try:
        _, resident, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return int(resident) * resource.getpagesize()


def gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
