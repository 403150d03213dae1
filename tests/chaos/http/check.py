"""What must be true of the events that the clients have received."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from tests.chaos.findings import Finding
from tests.chaos.http.requests import Received


class Rule(StrEnum):
    LOST = "lost: every event and every end arrives"
    DOUBLED = "doubled: nothing arrives or runs twice"
    REORDERED = "reordered: events arrive in order"
    SEAMS = "seams: the text is that of an undisturbed run"
    ENDS = "ends: one terminal event, the last one, with the right usage"
    ANSWERS = "answers: only those that are documented"
    REPLAYS = "replays: the same numbers and deltas, on every gateway"
    EMPTY = "empty: no entry, pending entry or dead letter is left"
    PROCESSES = "processes: nobody ends by himself, and SIGTERM is heeded"


def check_received(received: Received) -> Iterator[Finding]:
    name = (
        f"{received.request.endpoint} {received.request.number}, job {received.job_id or 'unknown'}"
    )
    for answer in received.undocumented:
        yield Finding(Rule.ANSWERS, f"{name}: {answer}")
    if not received.ended:
        yield Finding(Rule.LOST, f"{name}: no end after {len(received.frames)} events")
        return
    events = [json.loads(data) for _, data in received.frames]
    parts = (
        _response(received, events)
        if received.request.endpoint == "response"
        else _chat(received, events)
    )
    for finding in parts:
        yield Finding(finding.rule, f"{name}: {finding.detail}")


def check_jobs(all_received: Iterable[Received], entries_added: int) -> Iterator[Finding]:
    """Each request is one job."""
    ids = Counter(received.job_id for received in all_received)
    for job_id, count in ids.items():
        if count > 1:
            yield Finding(Rule.DOUBLED, f"job {job_id} answers {count} requests")
    if entries_added != ids.total():
        detail = f"{entries_added} entries were added for {ids.total()} requests"
        yield Finding(Rule.DOUBLED if entries_added > ids.total() else Rule.LOST, detail)


def check_replay(
    received: Received, after: int, replayed: Sequence[tuple[str, str]]
) -> Iterator[Finding]:
    """`after`: the index of the event after which the replay begins; -1: all of it."""
    expected = received.frames[after + 1 :]
    if list(replayed) != expected:
        differ = next(
            (n for n, pair in enumerate(zip(replayed, expected, strict=False)) if len({*pair}) > 1),
            min(len(replayed), len(expected)),
        )
        request = received.request
        detail = (
            f"{request.endpoint} {request.number} after {after}: {len(replayed)} events for "
            f"{len(expected)}, the first difference at {differ}"
        )
        yield Finding(Rule.REPLAYS, detail)


def _response(received: Received, events: list[dict[str, Any]]) -> Iterator[Finding]:
    numbers = [event["sequence_number"] for event in events]
    yield from _in_order(numbers)
    if missing := sorted(set(range(max(numbers) + 1)) - set(numbers)):
        yield Finding(Rule.LOST, f"numbers {missing[:5]} never came")
    if [str(number) for number in numbers] != [id_ for id_, _ in received.frames]:
        yield Finding(Rule.REORDERED, "the ids of the events are not their numbers")
    deltas = (e["delta"] for e in events if e["type"] == "response.output_text.delta")
    yield from _text("the deltas", "".join(deltas), received.request.text)
    ends = [n for n, e in enumerate(events) if e["type"] == "response.incomplete"]
    if ends != [len(events) - 1]:
        yield Finding(Rule.ENDS, f"{events[-1]['type']} is last, response.incomplete at {ends}")
        return
    response = events[-1]["response"]
    said = "".join(part["text"] for item in response["output"] for part in item["content"])
    yield from _text("the last event", said, received.request.text)
    yield from _usage(response["usage"]["output_tokens"], received)


def _chat(received: Received, events: list[dict[str, Any]]) -> Iterator[Finding]:
    positions = [tuple(map(int, id_.split("-"))) for id_, _ in received.frames]
    yield from _in_order(positions)
    choices = [choice for event in events for choice in event["choices"]]
    deltas = (choice["delta"].get("content") or "" for choice in choices)
    yield from _text("the deltas", "".join(deltas), received.request.text)
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    if reasons != ["length"]:
        yield Finding(Rule.ENDS, f"finish reasons {reasons}")
    usages = [event["usage"] for event in events if event.get("usage")]
    if len(usages) != 1 or events[-1].get("usage") is None:
        yield Finding(Rule.ENDS, f"{len(usages)} events with usage")
        return
    yield from _usage(usages[0]["completion_tokens"], received)


def _in_order(numbers: Sequence[Any]) -> Iterator[Finding]:
    for number, count in Counter(numbers).items():
        if count > 1:
            yield Finding(Rule.DOUBLED, f"event {number} came {count} times")
    if list(numbers) != sorted(numbers):
        yield Finding(Rule.REORDERED, "events came out of order")


def _text(where: str, said: str, expected: str) -> Iterator[Finding]:
    if said != expected:
        same = next(
            (n for n, (a, b) in enumerate(zip(said, expected, strict=False)) if a != b),
            min(len(said), len(expected)),
        )
        detail = f"{where}: {len(said)} characters for {len(expected)}, differ at {same}"
        yield Finding(Rule.SEAMS, detail)


def _usage(tokens: int, received: Received) -> Iterator[Finding]:
    if tokens != received.request.tokens:
        yield Finding(Rule.ENDS, f"usage says {tokens} tokens for {received.request.tokens}")
