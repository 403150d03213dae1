"""What must be true of one job, whatever died: pure functions of what was delivered and logged."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.chaos.findings import Finding
from tests.chaos.invariants import Invariant
from tests.chaos.job_record import Answer, JobRecord, LogEntry
from tests.chaos.plan import JobPlan, Kind


def check_job(record: JobRecord) -> Iterator[Finding]:
    number, events = record.job.number, list(record.events)
    yield from _order(number, events)
    yield from _end(number, events)
    yield from _content(number, events, record.answer)
    yield from _outcome(record, events)
    if record.log is not None:
        yield from _log(number, events, record.log)


def is_terminal(event: dict[str, Any]) -> bool:
    return bool(event["type"] != "tokens")


def _order(number: int, events: list[dict[str, Any]]) -> Iterator[Finding]:
    """Every position once, in ascending order, without a hole."""
    seen: set[int] = set()
    top = 0
    for event in events:
        end = event["index"] + len(event.get("token_ids", ()))
        for position in range(event["index"], end):
            if position in seen:
                yield Finding(Invariant.DOUBLED, f"token {position} came twice", number)
            elif position < top:
                yield Finding(Invariant.REORDERED, f"token {position} after {top - 1}", number)
            seen.add(position)
        top = max(top, end)
    missing = sorted(set(range(top)) - seen)
    if missing:
        yield Finding(Invariant.LOST, f"tokens {missing[:5]} never came", number)


def _end(number: int, events: list[dict[str, Any]]) -> Iterator[Finding]:
    ends = [event for event in events if is_terminal(event)]
    if any(event["type"] == "error" for event in events):
        yield Finding(Invariant.LOST, f"the stream broke off: {events[-1]['message']}", number)
    elif not ends:
        yield Finding(Invariant.LOST, f"no end came after {len(events)} events", number)
    elif len(ends) > 1:
        yield Finding(Invariant.ENDS, f"{len(ends)} terminal events", number)
    elif events[-1] is not ends[0]:
        yield Finding(Invariant.ENDS, "events came after the terminal one", number)


def _content(number: int, events: list[dict[str, Any]], answer: Answer | None) -> Iterator[Finding]:
    tokens = [token for event in events for token in event.get("token_ids", ())]
    text = "".join(event.get("text", "") for event in events)
    if answer is None:
        if tokens:
            yield Finding(Invariant.SEAMS, "a job that cannot run has tokens", number)
    elif finished := [event for event in events if event["type"] == "finished"]:
        if (tuple(tokens), text) != (answer.tokens, answer.text):
            yield Finding(Invariant.SEAMS, _first_difference(tokens, answer.tokens), number)
        if (numbers := finished[0].get("numbers")) != answer.numbers:
            detail = f"the numbers are {numbers}, undisturbed {answer.numbers}"
            yield Finding(Invariant.SEAMS, detail, number)
    elif tuple(tokens) != answer.tokens[: len(tokens)] or not answer.text.startswith(text):
        yield Finding(Invariant.SEAMS, _first_difference(tokens, answer.tokens), number)


def _first_difference(tokens: list[int], expected: tuple[int, ...]) -> str:
    for index, (one, other) in enumerate(zip(tokens, expected, strict=False)):
        if one != other:
            return f"token {index} is {one}, undisturbed {other}"
    return f"{len(tokens)} tokens, undisturbed {len(expected)}; or the text differs"


def _outcome(record: JobRecord, events: list[dict[str, Any]]) -> Iterator[Finding]:
    job = record.job
    ends = [event for event in events if is_terminal(event)]
    if not ends or ends[0]["type"] == "error":
        return  # counted as lost
    got = ends[0].get("code", ends[0]["type"])
    if record.failure is not None:
        allowed = {record.failure}
    elif job.kind is Kind.AMPLE and _is_over(job, record.lasted_s):
        allowed = {"finished", "deadline_exceeded"}
    else:
        allowed = {
            Kind.PLAIN: {"finished"},
            Kind.CANCEL_QUEUED: {"finished", "cancelled"},
            Kind.CANCEL_RUNNING: {"finished", "cancelled"},
            Kind.DEADLINE: {"finished", "deadline_exceeded"},
            Kind.AMPLE: {"finished"},
            Kind.PAUSE: {"finished"},
            Kind.POISON: {"crash_loop"},
        }[job.kind]
    if got not in allowed:
        said = ends[0].get("message", "")
        yield Finding(Invariant.OUTCOMES, f"{job.kind}: {got} {said}".strip(), job.number)


def _is_over(job: JobPlan, lasted_s: float | None) -> bool:
    """Whether the deadline has passed, however ample: the machine was slow, no clock was wrong."""
    return lasted_s is not None and job.deadline_s is not None and lasted_s >= job.deadline_s


def _log(number: int, events: list[dict[str, Any]], log: Sequence[LogEntry]) -> Iterator[Finding]:
    for entry, event in log:
        cursor = event["index"] + len(event.get("token_ids", ()))
        if entry != f"{cursor}-{int(is_terminal(event))}":
            yield Finding(Invariant.LOG, f"entry {entry} for an event up to {cursor}", number)
    delivered = [_comparable(event) for event in events]
    if delivered != [_comparable(event) for _, event in log]:
        detail = f"{len(log)} events logged, {len(delivered)} delivered"
        yield Finding(Invariant.LOG, detail, number)


def _comparable(event: dict[str, Any]) -> dict[str, Any]:
    """JSON has made lists of tuples."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in event.items()
    }
