"""How long a stream waits: for its caller, and for a Redis that is away."""

from __future__ import annotations

import random
import time

from redis.exceptions import AuthenticationError

from rose.errors import BrokerUnavailable, ResultTimeout

_FIRST_S = 0.05
_LONGEST_S = 2.0


class Reconnect:
    """One outage after another; `progress` ends the current one."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: float | None = None
        self._delay_s = _FIRST_S

    def progress(self) -> None:
        self._since = None
        self._delay_s = _FIRST_S

    def next_delay_s(self, error: Exception) -> float:
        """Seconds to sleep before the next try, with jitter so that subscribers do not return
        all at once.

        Raises:
            BrokerUnavailable: this outage has lasted for longer than the timeout, or waiting
                cannot help.
        """
        if isinstance(error, AuthenticationError):
            raise BrokerUnavailable(f"Redis refuses the user or password: {error}") from error
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._timeout_s:
            raise BrokerUnavailable(
                f"Redis has been away for {self._timeout_s:g} s: {error}; the job goes on, "
                "stream it again from your cursor"
            ) from error
        delay, self._delay_s = self._delay_s, min(self._delay_s * 2, _LONGEST_S)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret


class Patience:
    """How long a caller listens to a job; `timeout_s` None for as long as it takes."""

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
