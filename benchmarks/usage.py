"""What a process has used so far."""

import os
import time
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """Processor time of a worker, its Redis and this process, the client, from now on."""

    def __init__(self, *, worker: int | None, redis: int | None) -> None:
        """By their process ids. Raises: RuntimeError: one has ended."""
        if worker is None or redis is None:
            raise RuntimeError("a process has ended")
        self._pids = {"worker": worker, "Redis": redis}
        self._before = self._now()

    def used_s(self) -> dict[str, float]:
        return {name: now - self._before[name] for name, now in self._now().items()}

    def _now(self) -> dict[str, float]:
        return {name: cpu_s(pid) for name, pid in self._pids.items()} | {
            "client": time.process_time()
        }


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
