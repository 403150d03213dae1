"""What the demo has seen so far, for whoever shows it."""

import time
from dataclasses import dataclass, field

from rose_producer import Event, FinishedEvent, Result, TokenEvent

_RATE_WINDOW_S = 1.0


@dataclass(slots=True)
class StreamRecord:
    """One subscriber's view of one job: exactly what reached it, in the order it came."""

    number: int
    title: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    """who worked on it, in turn"""
    moved_at: int | None = None
    """tokens it had when its worker was killed"""
    end: Event | None = None

    def add(self, event: Event) -> None:
        if not isinstance(event, TokenEvent):
            self.end = event
            return
        self.text += event.text
        self.token_ids += event.token_ids
        self.indexes += range(event.index, event.cursor)
        self.arrivals += [time.monotonic()] * len(event.token_ids)

    def seen_on(self, worker: str | None) -> None:
        if worker is not None and self.workers[-1:] != [worker]:
            self.workers.append(worker)

    @property
    def ended(self) -> bool:
        return self.end is not None

    @property
    def resumed(self) -> bool:
        """Another worker goes on with it, or has done so."""
        return self.moved_at is not None and len(self.workers) > 1

    @property
    def in_mid_sentence(self) -> bool:
        return bool(self.text) and not self.text.rstrip().endswith((".", "!", "?", '"'))

    @property
    def missing(self) -> int:
        """Tokens that the job has and the subscriber has not."""
        total = self.end.index if self.end is not None else len(self.indexes)
        return len(set(range(total)) - set(self.indexes))

    @property
    def doubled(self) -> int:
        return len(self.indexes) - len(set(self.indexes))

    @property
    def in_order(self) -> bool:
        return self.indexes == sorted(self.indexes)

    def equals(self, undisturbed: Result) -> bool:
        return (
            isinstance(self.end, FinishedEvent)
            and self.end.reason == undisturbed.finish_reason
            and self.text == undisturbed.text
            and tuple(self.token_ids) == undisturbed.token_ids
        )

    def is_right(self, undisturbed: Result) -> bool:
        whole = self.missing == 0 and self.doubled == 0 and self.in_order
        return whole and self.equals(undisturbed)


@dataclass(slots=True)
class WorkerView:
    name: str
    batch: int = 0
    capacity: int = 0
    killed_at_s: float | None = None

    @property
    def alive(self) -> bool:
        return self.killed_at_s is None


@dataclass(slots=True)
class DemoState:
    records: list[StreamRecord]
    workers: list[WorkerView]
    started: float = field(default_factory=time.monotonic)
    ended: bool = False

    @property
    def moved(self) -> list[StreamRecord]:
        """The streams whose worker was killed."""
        return [record for record in self.records if record.moved_at is not None]

    @property
    def phase(self) -> str:
        """What happens now, in a sentence."""
        resumed = sum(record.resumed for record in self.moved)
        if not self.moved:
            return "two workers generate; one will be killed in mid-sentence"
        if resumed < len(self.moved):
            return f"taking over: {resumed} of {len(self.moved)} streams have gone on"
        if not self.ended:
            return f"taken over: all {resumed} streams went on at the next token"
        return "all streams have ended"

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def tokens_per_s(self) -> float:
        since = time.monotonic() - _RATE_WINDOW_S
        recent = sum(1 for r in self.records for at in r.arrivals if at > since)
        return recent / _RATE_WINDOW_S
