"""When a process was ready to run and had no core: a job is owed nothing for that time.

The bounds are of wall time. On a machine with more work than cores a job waits for cores as well as
for its turn, and that is nobody's fault.
"""

from pathlib import Path

from tests.chaos import clock
from tests.chaos.trouble import Trouble

_WHAT = "waited for a core"
#: Shorter waits are the machine's daily life.
_MIN_WAIT_S = 0.005


def waits_s(pid: int) -> dict[int, float]:
    """Each thread of a process, and how long it has waited for a core since it began."""
    waits = {}
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            waits[int(path.parent.name)] = int(path.read_text().split()[1]) / 1e9
        except OSError:  # it has just ended
            continue
    return waits


class Starvation:
    """Of one process; looked at again and again."""

    def __init__(self, process: str | None, partitions: frozenset[int] | None = None) -> None:
        """As in `Trouble`: whom it concerns."""
        self._process = process
        self._partitions = partitions
        self._looked_at = 0.0
        self._waits: dict[int, float] = {}
        self.spans: list[Trouble] = []

    def look(self, pid: int | None) -> None:
        """Where the process is dead, None. What its threads have waited for since the last look is
        taken as one wait, of the one that waited longest: they wait side by side."""
        waits = {} if pid is None else waits_s(pid)
        before, began, now = self._waits, self._looked_at, clock.now()
        self._waits, self._looked_at = waits, now
        longest = max((waits[t] - before[t] for t in waits.keys() & before.keys()), default=0.0)
        if longest < _MIN_WAIT_S:
            return
        longest = min(longest, now - began)
        # Whom all wait for waits after they have: those who wait for each other add up.
        span = (began, began + longest) if self._process is not None else (now - longest, now)
        self.spans.append(Trouble(*span, _WHAT, self._process, self._partitions))
