"""A read of a job's log: the commands for Redis, and the events in its replies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rose import transport
from rose.protocol import Event, Partition, decode_event
from rose.protocol.status import read_standing
from rose_producer.cursor import LogCursor

#: Events of a read. A read with a subscription asks for few, because its replies share a buffer
#: with the messages of all listeners.
CHUNK = 1000
FIRST_CHUNK = 100
#: Events that are decoded at a time. With twenty log-probabilities each takes 15 kB until its
#: reader takes it.
_PIECE = 32


@dataclass(slots=True)
class LogRead:
    partition: Partition
    job_id: str
    cursor: LogCursor
    has_deadline: bool = False
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
        self.has_deadline = standing[-1] is not None
        # What is read again after a doubt is judged as a whole: its first events are repeats, and
        # where an event is to be cut depends on those before it.
        in_doubt = self.cursor.start < self.cursor.position
        size = (len(entries) if in_doubt else _PIECE) or 1
        for start in range(0, len(entries) or 1, size):
            end = start + size
            events = [
                decode_event(transport.field_of(fields, b"event") or b"")
                for _, fields in entries[start:end]
            ]
            is_end = end >= len(entries) and len(entries) < count
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
