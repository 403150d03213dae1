"""How long a caller listens to a job."""

from __future__ import annotations

import time

from rose.errors import ResultTimeout


class Patience:
    """`timeout_s`: None for as long as it takes."""

    def __init__(self, job_id: str, timeout_s: float | None, poll_interval_s: float) -> None:
        self._job_id = job_id
        self._poll_interval_s = poll_interval_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def wait_s(self) -> float:
        """Seconds to listen before the next look into the log.

        Raises:
            ResultTimeout: the caller's time is over.
        """
        if self._deadline is None:
            return self._poll_interval_s
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ResultTimeout(
                f"job {self._job_id} has not ended in time; it goes on, ask again or cancel it"
            )
        return min(self._poll_interval_s, left)
