"""How long a test waits for what should come soon: by what the machine can do, not by a clock."""

import os
import time


class TimeLimit:
    """So many seconds of a machine that has nothing else to do. Beside other programs a second
    counts for the part of a processor that is left for each."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._seen = time.monotonic()

    @property
    def passed(self) -> bool:
        seen = time.monotonic()
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
        self._left_s -= (seen - self._seen) / max(1.0, waiting)
        self._seen = seen
        return self._left_s <= 0
