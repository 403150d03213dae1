"""The one retry policy: how long each part waits before it tries Redis again."""

import random
import time
from dataclasses import dataclass

from redis.exceptions import AuthenticationError

from rose.errors import BrokerUnavailable


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double up to a maximum. Jitter takes up to half of each pause, so that clients do
    not all return at once when Redis is back."""

    first_s: float
    longest_s: float

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        pause_s = min(self.first_s * 2.0 ** min(failures - 1, 32), self.longest_s)
        return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret


#: For a call, whose caller waits.
CALL = Backoff(first_s=0.1, longest_s=2.0)

#: For a stream that has lost its connection.
STREAM = Backoff(first_s=0.05, longest_s=2.0)

#: For a connection for subscriptions. Many streams may wait for it.
SUBSCRIPTION = Backoff(first_s=0.05, longest_s=0.5)

#: For a connection for round trips. Many callers may wait for it, and each has pauses of its own.
CONNECTION = Backoff(first_s=0.02, longest_s=0.2)

#: For a worker's loops, which continue until Redis is back.
WORKER = Backoff(first_s=0.1, longest_s=1.0)

#: For a line of a batch, which has hours: until Redis is back, or the queue has room.
BATCH = Backoff(first_s=0.2, longest_s=5.0)


class Outage:
    """Counts the failures in a row of a loop, and says how long to pause after each."""

    def __init__(self, backoff: Backoff, timeout_s: float | None = None) -> None:
        """`timeout_s`: the longest outage to wait for; None means without a limit."""
        self._backoff = backoff
        self._timeout_s = timeout_s
        self._failures = 0
        self._since = 0.0

    def end(self) -> None:
        """Reset after a success."""
        self._failures = 0

    def next_pause_s(self, error: BaseException) -> float:
        """Raises:
        BrokerUnavailable: the outage is longer than the timeout, or waiting cannot help.
        """
        now = time.monotonic()
        if not self._failures:
            self._since = now
        self._failures += 1
        if self._timeout_s is not None:
            if isinstance(error, AuthenticationError):
                raise BrokerUnavailable(f"Redis refuses the user or password: {error}") from error
            if now - self._since > self._timeout_s:
                raise BrokerUnavailable(
                    f"Redis has been away for {self._timeout_s:g} s: {error}; the job goes on, "
                    "stream it again from your cursor"
                ) from error
        return self._backoff.pause_s(self._failures)
