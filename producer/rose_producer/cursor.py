"""Exactly once, in order: the whole of a subscriber's logic, without any I/O.

The log and the channel carry the same events. Each event says how many tokens came before it, so
a subscriber that knows how many it has can tell news from repeats and from gaps.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from enum import Enum, auto

from rose.errors import (
    InvalidCursor,
    InvalidParameter,
    JobNotFound,
    MalformedMessage,
    ResultTimeout,
)
from rose.protocol import TERMINAL_STATUSES, Event, decode_event
from rose.protocol.status import job_not_found


class Verdict(Enum):
    NEWS = auto()
    REPEAT = auto()
    GAP = auto()
    """Something before it is missing: read the log."""


class LogCursor:
    """Where a subscriber stands. Invariant: it has tokens 0 to `position` - 1, each once."""

    def __init__(self, position: int = 0) -> None:
        if type(position) is not int or position < 0:
            raise InvalidCursor(f"a cursor counts tokens and cannot be {position!r}")
        self.position = position
        self.ended = False
        self._asked_for = position

    @property
    def log_start(self) -> str:
        """XRANGE start, exclusive: the first entry after what the subscriber has."""
        return f"({self.position}-0"

    def judge(self, event: Event) -> Verdict:
        """Moves past the event if it is news.

        Raises:
            InvalidCursor: the position lies inside an event, where text cannot be cut, or behind
                the job's end.
            JobNotFound: what was delivered is not there any more.
        """
        if event.index == self.position and not self.ended:  # as nearly all are
            self.position = event.cursor
            self.ended = event.is_terminal
            return Verdict.NEWS
        if self.ended or (event.cursor <= self.position and not event.is_terminal):
            return Verdict.REPEAT
        if event.index > self.position:
            return Verdict.GAP
        if event.is_terminal:
            raise self._not_there(f"the job has ended after {event.index} tokens")
        raise self._not_there(
            f"it lies inside the event of tokens {event.index} to {event.cursor}, and must be the "
            "cursor of an event"
        )

    def judge_live(self, raw: bytes | None) -> tuple[Verdict, Event | None]:
        """As `judge`, for a message of the channel; with the event where it is news.

        Anybody may publish there. What cannot be read says no more than None does, which stands
        for silence and for messages that were lost: look into the log.

        Raises: InvalidCursor, JobNotFound
        """
        if raw is None:
            return Verdict.GAP, None
        try:
            event = decode_event(raw)
        except MalformedMessage:
            return Verdict.GAP, None
        verdict = self.judge(event)
        return verdict, event if verdict is Verdict.NEWS else None

    def judge_all_live(
        self, raw: bytes | None, next_ready: Callable[[], bytes | None]
    ) -> tuple[list[Event], bool]:
        """The news among this message and those that are there already, and whether something is
        missing after them: look into the log.

        Raises: InvalidCursor, JobNotFound
        """
        news: list[Event] = []
        while True:
            verdict, event = self.judge_live(raw)
            if event is not None:
                news.append(event)
            elif verdict is Verdict.GAP:
                return news, True
            if self.ended or (raw := next_ready()) is None:
                return news, False

    def judge_logged(self, event: Event) -> Verdict:
        """As `judge`, for an event read from the log, where nothing may be missing.

        Raises:
            MalformedMessage: the log has a hole: somebody trimmed or edited it.
        """
        verdict = self.judge(event)
        if verdict is Verdict.GAP:
            raise MalformedMessage(
                f"the token log lacks tokens {self.position} to {event.index - 1}"
            )
        return verdict

    def judge_all_logged(self, events: Iterable[Event]) -> list[Event]:
        """The news among what was read from the log, up to a hole.

        Raises:
            MalformedMessage: it begins with a hole.
        """
        news: list[Event] = []
        for event in events:
            try:
                verdict = self.judge_logged(event)
            except MalformedMessage:
                if not news:
                    raise
                break
            if verdict is Verdict.NEWS:
                news.append(event)
        return news

    def check_silence(self, status: str | None, logged: int, job_id: str) -> None:
        """Check that the log may have nothing after this position.

        `status` and `logged` are from the job's state, read before the log. A failover may have
        forgotten tokens that were delivered: while the job lives, a worker writes them again.

        Raises:
            JobNotFound: no such job, or what it wrote is gone.
            InvalidCursor: the job has not as many tokens as the caller says.
        """
        if status is None:
            raise job_not_found(job_id)
        has_ended = status in TERMINAL_STATUSES
        if self.position > logged and (has_ended or not self._has_delivered):
            raise self._not_there(f"job {job_id} has only {logged} tokens")
        if has_ended and not self.ended:
            raise JobNotFound(f"job {job_id} is {status}, and its tokens have expired")

    @property
    def _has_delivered(self) -> bool:
        return self.position > self._asked_for

    def _not_there(self, what: str) -> InvalidCursor | JobNotFound:
        """The caller asked for a position that is none, or Redis had it when it was delivered."""
        if self._has_delivered:
            return JobNotFound(
                f"{self.position} tokens were delivered, and are not in Redis any more: {what}. "
                "The job's state was deleted, or a failover has forgotten it"
            )
        return InvalidCursor(f"cursor {self.position}: {what}")


class Patience:
    """How long a caller listens to a job. `timeout_s`: None means without a limit.

    A stream that receives nothing reads the log after `poll_interval_s`, in case a message was
    lost. Each read that finds nothing doubles that, up to `max_poll_interval_s`, so that thousands
    of streams that wait cost nothing. An event begins anew.
    """

    def __init__(
        self,
        job_id: str,
        timeout_s: float | None,
        poll_interval_s: float,
        max_poll_interval_s: float,
    ) -> None:
        if not isinstance(timeout_s, int | float | None):
            raise InvalidParameter(
                f"timeout_s: must be a number of seconds (got {timeout_s!r:.100})"
            )
        self._job_id = job_id
        self._first_s = self._interval_s = poll_interval_s
        self._longest_s = max(poll_interval_s, max_poll_interval_s)
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._jitter = _jitter()

    def restart(self) -> None:
        """There was an event, or the stream has just begun to listen."""
        self._interval_s = self._first_s

    def found_nothing(self) -> None:
        """Nothing was received, and nothing new was in the log."""
        self._interval_s = min(2 * self._interval_s, self._longest_s)
        self._jitter = _jitter()

    def wait_s(self) -> float:
        """Seconds to listen before the next read of the log. Jitter takes a part of it: thousands
        of streams that began together do not read together.

        Raises:
            ResultTimeout: the caller's time is over.
        """
        interval_s = self._interval_s * self._jitter
        if self._deadline is None:
            return interval_s
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ResultTimeout(
                f"job {self._job_id} has not ended in time; it goes on, ask again or cancel it"
            )
        return min(interval_s, left)


def _jitter() -> float:
    return random.uniform(0.8, 1.0)  # noqa: S311 - no secret
