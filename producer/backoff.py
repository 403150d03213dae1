"""How a stream waits for a Redis that is away: longer each time, and not for ever."""

from __future__ import annotations

import random
import time

from redis.exceptions import AuthenticationError

from rose_errors import BrokerUnavailable

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
