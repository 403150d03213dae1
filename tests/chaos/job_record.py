"""What is known about a job that is over, and what is kept of it once it was checked."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.plan import JobPlan

LogEntry = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job says when nobody disturbs it."""

    tokens: tuple[int, ...]
    text: str
    numbers: list[Any] | None = None
    """as its event has them in JSON"""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """All that is known about a job that is over."""

    job: JobPlan
    events: Sequence[dict[str, Any]]
    """delivered"""
    log: Sequence[LogEntry] | None
    """id and event of each entry; None: the log has expired on purpose"""
    answer: Answer | None = None
    failure: str | None = None
    """the code with which it must fail"""
    lasted_s: float | None = None
    """from its entry to its end by Redis' clock"""


@dataclass(frozen=True, slots=True)
class Summary:
    """What stays of a job that was checked."""

    events: int
    tokens: int
    outcome: str | None
    """type or code of the last event; None: there was none"""
    text: str
    """digest of what the job has said by its log"""


def summarize(events: Sequence[dict[str, Any]], log: Sequence[LogEntry]) -> Summary:
    return Summary(
        len(events),
        sum(len(event.get("token_ids", ())) for event in events),
        str(events[-1].get("code", events[-1]["type"])) if events else None,
        digest(*said(event for _, event in log)),
    )


def said(events: Iterable[dict[str, Any]]) -> tuple[list[int], str]:
    """Tokens and text of a job."""
    tokens: list[int] = []
    texts: list[str] = []
    for event in events:
        tokens += event.get("token_ids", ())
        texts.append(event.get("text", ""))
    return tokens, "".join(texts)


def digest(tokens: Sequence[int], text: str) -> str:
    return hashlib.sha256(json.dumps([list(tokens), text]).encode()).hexdigest()
