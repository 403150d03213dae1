"""What was sent and what has become of it: every message is accounted for, one by one."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from rose.errors import MalformedMessage, RoseError
from rose.protocol import TERMINAL_STATUSES, Partition, TokenEvent, decode_event

_LETTERS_AT_ONCE = 1000
#: Wrong outcomes that are reported in full; the others are only counted.
_MAX_TOLD = 20


@dataclass(frozen=True, slots=True)
class Sent:
    raw: bytes
    refusal: str | None
    """the code of the dead letter it must become; None for a job that can be read"""
    job_id: str = ""
    answer: tuple[int, ...] | None = None
    """the tokens it must end with, where that is certain"""
    may_fail: bool = False
    """readable, but the worker may have a reason against it: too long, or its log is poisoned"""


@dataclass
class Ledger:
    redis: redis.Redis
    partition: Partition
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    letters: int = 0
    _open: dict[tuple[str, str], Sent] = field(default_factory=dict)
    _read_to: str = "-"

    @property
    def open(self) -> int:
        return len(self._open)

    def sent(self, stream: str, entry: str, sent: Sent) -> None:
        self._open[stream, entry] = sent

    def settle(self) -> None:
        """Close the accounts of all messages that have left their streams."""
        gone = self._gone(list(self._open))
        self._read_letters()
        self._check_ended([key for key in gone if key in self._open])

    def _gone(self, keys: list[tuple[str, str]]) -> list[tuple[str, str]]:
        pipeline = self.redis.pipeline(transaction=False)
        for stream, entry in keys:
            pipeline.xrange(stream, entry, entry)
        return [key for key, left in zip(keys, pipeline.execute(), strict=True) if not left]

    def _read_letters(self) -> None:
        while True:
            found: Any = self.redis.xrange(
                self.partition.dead, self._read_to, "+", count=_LETTERS_AT_ONCE
            )
            if not found:
                return
            for _, fields in found:
                self._letter({name.decode(): value for name, value in fields.items()})
            self._read_to = f"({found[-1][0].decode()}"
            self.redis.xdel(self.partition.dead, *(entry for entry, _ in found))

    def _letter(self, fields: dict[str, bytes]) -> None:
        self.letters += 1
        code = fields["code"].decode()
        self.outcomes[f"dead letter: {code}"] += 1
        sent = self._open.pop((fields["stream"].decode(), fields["entry"].decode()), None)
        if sent is None:
            self._complain(f"a second dead letter, or one of nobody: {fields}")
        elif code not in _codes():
            self._complain(f"a code that nobody knows, {code}: {sent.raw[:200]!r}")
        elif code != sent.refusal and not (sent.may_fail and sent.refusal is None):
            self._complain(f"{code} where it is {sent.refusal or 'a job'}: {sent.raw[:200]!r}")

    def _check_ended(self, keys: list[tuple[str, str]]) -> None:
        """Those that are gone and no dead letters: jobs, with one terminal event, the last one."""
        pipeline = self.redis.pipeline(transaction=False)
        for key in keys:
            job_id = self._open[key].job_id
            pipeline.hmget(self.partition.state(job_id), "status", "stream", "entry")
            pipeline.xrange(self.partition.tokens(job_id))
        replies = pipeline.execute()
        for key, state, log in zip(keys, replies[::2], replies[1::2], strict=True):
            status, *place = (value and value.decode() for value in state)
            if status == "running" and tuple(place) != key:
                continue  # a second entry of a job that still runs: both are settled at its end
            sent = self._open.pop(key)
            problem = self._problem(sent, status, log)
            if problem is None:
                self.outcomes[f"job: {status}"] += 1
            else:
                self.outcomes["wrong"] += 1
                self._complain(f"{problem}: job {sent.job_id!r}, {sent.raw[:200]!r}")

    def _problem(self, sent: Sent, status: str | None, log: Iterable[Any]) -> str | None:
        if sent.refusal is not None:
            return f"gone without a trace, where it is {sent.refusal}"
        if status not in TERMINAL_STATUSES:
            return f"gone, and its status is {status}"
        try:
            events = [decode_event(fields.get(b"event", b"")) for _, fields in log]
        except MalformedMessage:
            return None if sent.may_fail else "its log cannot be read"
        if [event.is_terminal for event in events] != [False] * (len(events) - 1) + [True]:
            return f"its log ends with {[event.type for event in events]}"
        tokens = [t for e in events if isinstance(e, TokenEvent) for t in e.token_ids]
        if sent.answer is not None and tuple(tokens) != sent.answer:
            return f"it said {tokens}"
        return None

    def _complain(self, problem: str) -> None:
        if len(self.wrong) < _MAX_TOLD:
            self.wrong.append(problem)
        self.outcomes["complaints"] += 1


def _codes() -> frozenset[str]:
    """Every code of the tree of errors."""
    kinds: list[type[RoseError]] = [RoseError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return frozenset(kind.code for kind in kinds)
