"""Exactly once, in order: the whole of a subscriber's logic, without any I/O.

The log and the channel carry the same events. Each event says how many tokens came before it, so
a subscriber that knows how many it has can tell news from repeats and from gaps.

A failover may forget tokens that were delivered. Whoever takes the job next writes them again,
maybe in events with other boundaries. A subscriber then cuts an event where it stands itself. It
remembers the last events that it has delivered: if others come in their place, it says so.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from msgspec import structs

from rose import transport
from rose.errors import (
    AnswerChanged,
    InvalidCursor,
    InvalidParameter,
    JobNotFound,
    MalformedMessage,
    ResultTimeout,
)
from rose.protocol import (
    TERMINAL_STATUSES,
    Event,
    FinishedEvent,
    Partition,
    TokenEvent,
    decode_event,
)
from rose.protocol.status import job_not_found, read_standing

#: Events that a stream remembers of those that it has delivered.
_REMEMBERED = 16


class Verdict(Enum):
    NEWS = auto()
    REPEAT = auto()
    GAP = auto()
    """Something before it is missing: read the log."""
    CHANGED = auto()
    """It does not follow what was delivered: the log was written again."""


class LogCursor:
    """Where a subscriber stands. Invariant: it has tokens 0 to `position` - 1, each once."""

    def __init__(self, position: int = 0) -> None:
        if type(position) is not int or position < 0:
            raise InvalidCursor(f"a cursor counts tokens and cannot be {position!r}")
        self.position = position
        self.ended = False
        self._delivered: deque[Event] = deque(maxlen=_REMEMBERED)
        self._reread_from: int | None = None

    @property
    def start(self) -> int:
        """The token from which on the log is to be read: in doubt, one that was delivered."""
        return self.position if self._reread_from is None else self._reread_from

    def doubt(self, logged: int | None = None) -> None:
        """The log may be another one than before: what is remembered of it is read again, and what
        comes after `logged` tokens."""
        start = self._delivered[0].index if self._delivered else self.position
        if logged is not None:
            start = min(start, logged)
        if start < self.start:
            self._reread_from = start

    def judge(self, event: Event) -> Verdict:
        """Moves past the event if it is news."""
        if event.index == self.position and not self.ended:  # as nearly all are
            self.position = event.cursor
            self.ended = event.is_terminal
            self._delivered.append(event)
            return Verdict.NEWS
        if self.ended:
            return Verdict.REPEAT
        if event.index > self.position:
            return Verdict.GAP
        follows = event.cursor <= self.position and not event.is_terminal
        return Verdict.REPEAT if follows and _agree(event, self._delivered) else Verdict.CHANGED

    def judge_live(self, raw: bytes | None) -> tuple[Verdict, Event | None]:
        """As `judge`, for a message of the channel; with the event where it is news.

        Anybody may publish there. What cannot be read says no more than None does, which stands
        for silence and for messages that were lost: look into the log. What does not follow is a
        reason to doubt, and the log decides.
        """
        if raw is None:
            return Verdict.GAP, None
        try:
            event = decode_event(raw)
        except MalformedMessage:
            return Verdict.GAP, None
        verdict = self.judge(event)
        if verdict is Verdict.CHANGED:
            self.doubt()
            return Verdict.GAP, None
        return verdict, event if verdict is Verdict.NEWS else None

    def judge_all_live(
        self, raw: bytes | None, next_ready: Callable[[], bytes | None]
    ) -> tuple[list[Event], bool]:
        """The news among this message and those that are there already, and whether something is
        missing after them: look into the log."""
        news: list[Event] = []
        while True:
            verdict, event = self.judge_live(raw)
            if event is not None:
                news.append(event)
            elif verdict is Verdict.GAP:
                return news, True
            if self.ended or (raw := next_ready()) is None:
                return news, False

    def judge_all_logged(self, events: Sequence[Event]) -> list[Event]:
        """The news among what was read from the log, up to a hole.

        Where that does not follow what was delivered, there is no news until what is remembered
        has been read again.

        Raises:
            MalformedMessage: it begins with a hole: somebody trimmed or edited the log.
            AnswerChanged, InvalidCursor: as `_continued`
        """
        news: list[Event] = []
        for read in events:
            event, verdict = read, self.judge(read)
            if verdict is Verdict.CHANGED:
                before = self.start
                self.doubt()
                if self.start < before:
                    return news
                event = self._continued(read)
                verdict = self.judge(event)
            if verdict is Verdict.GAP and not news:
                raise MalformedMessage(
                    f"the token log lacks tokens {self.position} to {event.index - 1}"
                )
            if verdict is Verdict.GAP:
                return news
            if verdict is Verdict.NEWS:
                news.append(event)
        if events and events[-1].cursor >= self.position:
            self._reread_from = None  # it is the same log
        return news

    def _continued(self, event: Event) -> Event:
        """What an event that does not follow says to this subscriber: the rest of its tokens, or
        how the job ended.

        Raises:
            AnswerChanged: the tokens are others than those that were delivered.
            InvalidCursor: the caller asked for a position behind the job's end.
        """
        if isinstance(event, FinishedEvent):
            raise self._not_there(f"the answer ends after {event.index}")
        if not isinstance(event, TokenEvent):
            return structs.replace(event, index=self.position)
        if not _agree(event, self._delivered):
            raise self._not_there(f"tokens {event.index} to {event.cursor - 1} are others now")
        return event.after(self.position)

    def check_silence(self, status: str | None, logged: int, job_id: str) -> None:
        """Check that the log may have nothing after this position.

        `status` and `logged` are from the job's state, read before the log. A failover may have
        forgotten tokens that a subscriber has, from this stream or an earlier one: while the job
        lives, a worker writes them again. If it ended first, the log is to be read from there.

        Raises:
            JobNotFound: no such job, or what it wrote is gone.
        """
        if status is None:
            raise job_not_found(job_id)
        has_ended, before = status in TERMINAL_STATUSES, self.start
        if self.position > logged:
            self.doubt(logged if has_ended else None)
        if has_ended and not self.ended and self.start >= before:
            raise JobNotFound(f"job {job_id} is {status}, and its tokens have expired")

    def _not_there(self, what: str) -> InvalidCursor | AnswerChanged:
        """The caller asked for a position that is none, or Redis had it when it was delivered."""
        begin = "read the job again from cursor 0"
        if self._delivered:
            return AnswerChanged(
                f"{self.position} tokens were delivered, and are not in Redis any more: {what}. A "
                f"failover has forgotten them, and they came again as others: {begin}"
            )
        return InvalidCursor(f"cursor {self.position}: {what}: {begin}")


def _agree(event: Event, delivered: Iterable[Event]) -> bool:
    """Whether the tokens that both have are the same."""
    return all(
        _tokens(event, first, last) == _tokens(one, first, last)
        for one in delivered
        if (first := max(one.index, event.index)) < (last := min(one.cursor, event.cursor))
    )


def _tokens(event: Event, first: int, last: int) -> tuple[int, ...]:
    if not isinstance(event, TokenEvent):
        return ()
    return event.token_ids[first - event.index : last - event.index]


class Patience:
    """How long a caller listens to a job. `timeout_s`: None means without a limit.

    A stream that receives nothing reads the log after `poll_interval_s`, in case a message was
    lost. Each read that finds nothing doubles that, up to `max_poll_interval_s`, so that thousands
    of streams that wait cost nothing. An event resets that.
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
        self._job_ends_at: float | None = None
        self._jitter = _jitter()

    def restart(self) -> None:
        """There was an event, or the stream has just begun to listen."""
        self._interval_s = self._first_s

    def found_nothing(self) -> None:
        """Nothing was received, and nothing new was in the log."""
        self._interval_s = min(2 * self._interval_s, self._longest_s)
        self._jitter = _jitter()

    def note_deadline(self, left_s: float | None) -> None:
        """In so many seconds the job's own deadline passes; None: it has none."""
        self._job_ends_at = None if left_s is None else time.monotonic() + left_s

    @property
    def job_is_late(self) -> bool:
        return self._job_ends_at is not None and time.monotonic() >= self._job_ends_at

    def wait_s(self) -> float:
        """Seconds to listen before the next read of the log. Jitter takes a part of it: thousands
        of streams that began together do not read together.

        Raises:
            ResultTimeout: the caller's time is over.
        """
        interval_s = self._interval_s * self._jitter
        if self._job_ends_at is not None:
            interval_s = min(interval_s, max(0.0, self._job_ends_at - time.monotonic()))
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


#: Events of a read. A read with a subscription asks for few, because its replies share a buffer
#: with the messages of all listeners. A reader that stalls keeps what it has read.
CHUNK = 250
FIRST_CHUNK = 100
#: Events that are decoded at a time, and their bytes: with twenty log-probabilities one takes 2 kB.
_PIECE = 64
_PIECE_BYTES = 16 * 1024


@dataclass(slots=True)
class LogRead:
    partition: Partition
    job_id: str
    cursor: LogCursor
    has_deadline: bool = False
    """as the last read said"""
    is_queued: bool = False
    """as the last read said"""

    def commands(self, count: int) -> Sequence[tuple[str | int, ...]]:
        """The job's status, and at most `count` events that its log has after the cursor's start:
        XRANGE takes it as exclusive."""
        log = self.partition.tokens(self.job_id)
        return [
            ("HMGET", self.partition.state(self.job_id), "status", "tokens", "deadline_ms"),
            ("XRANGE", log, f"({self.cursor.start}-0", "+", "COUNT", count),
        ]

    def new_events(self, replies: Sequence[Any], count: int) -> Iterator[tuple[list[Event], bool]]:
        """The events that are new, in pieces, each of which moves the cursor, and whether the log
        has no more.

        Raises: JobNotFound, AnswerChanged, InvalidCursor, MalformedMessage
        """
        standing, entries = replies
        self.has_deadline, self.is_queued = standing[-1] is not None, standing[0] == b"queued"
        # What is read again after a doubt is judged as a whole: its first events are repeats, and
        # where an event is to be cut depends on those before it.
        in_doubt = self.cursor.start < self.cursor.position
        raws = [transport.field_of(fields, b"event") or b"" for _, fields in entries]
        end = 0
        for piece in [raws] if in_doubt else _pieces(raws):
            end += len(piece)
            events = [*map(decode_event, piece)]
            is_end = end == len(raws) < count
            yield self._new(standing, events, is_end=is_end)
            if not events or self.cursor.start != events[-1].cursor:
                return  # a hole, or in doubt: the log is to be read again

    def _new(
        self, standing: Any, events: Sequence[Event], *, is_end: bool
    ) -> tuple[list[Event], bool]:
        start = self.cursor.start
        if news := self.cursor.judge_all_logged(events):
            is_all = is_end and self.cursor.position == events[-1].cursor
            return news, is_all or self.cursor.ended
        if self.cursor.start >= start:
            self.cursor.check_silence(*read_standing(self.job_id, standing), self.job_id)
        return [], self.cursor.start >= start


def _pieces(raws: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """At least one, which may be empty."""
    start = size = 0
    for end, raw in enumerate(raws):
        if end > start and (end - start == _PIECE or size + len(raw) > _PIECE_BYTES):
            yield raws[start:end]
            start, size = end, 0
        size += len(raw)
    yield raws[start:]
