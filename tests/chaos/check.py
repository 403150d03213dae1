"""The invariants: what must be true whatever died. Pure functions of the evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rose.protocol import partition_of
from tests.chaos.bounds import BEHIND_S, TAKEOVER_S, Bounds
from tests.chaos.evidence import Crowd, Evidence, Take, Trouble, moves
from tests.chaos.managed_process import End, Life
from tests.chaos.plan import RAW_BASE, JobPlan, Kind

#: Growth of a Redis that is no leak: dead letters, scripts, its own tables.
_MEMORY_SLACK = 1024 * 1024
#: Of an asyncio client, to one server.
MAX_CONNECTIONS = 64
#: A clock is read shortly before or after the event that it dates.
_AT_ONCE_S = 0.5


class Invariant(StrEnum):
    LOST = "lost: every token and every end arrives"
    DOUBLED = "doubled: nothing arrives or runs twice"
    REORDERED = "reordered: tokens arrive in order"
    SEAMS = "seams: the text is that of an undisturbed run"
    DEADLINES = "deadlines: no job begins after its own, whoever's clock is wrong"
    RAISED = "raised: no stream raised anything"
    ENDS = "ends: one terminal event, the last one"
    OUTCOMES = "outcomes: innocent jobs finish, others end as they must"
    LOG = "log: holds what was delivered, under the ids of the protocol"
    MOVED = "moved: no job leaves a worker that is alive and well"
    TAKEOVER = f"takeover: a lost worker's jobs go on within {TAKEOVER_S:g} s"
    ORDER = f"order: by priority and age, nobody is behind for more than {BEHIND_S:g} s"
    DEAD_LETTERS = "dead letters: the poison and garbage, each once, nothing else"
    EMPTY = "empty: no entry, pending entry or queued token is left"
    EXPIRY = "expiry: what has expired is gone with its key, and a dead letter is retried once"
    CROWD = f"crowd: many streams in one client agree, over at most {MAX_CONNECTIONS} connections"
    GOES_ON = "goes on: with memory at its limit, one of several nodes frozen, or the listener dead"
    SLOTS = "slots: batch and KV cache of the workers are empty"
    MEMORY = "memory: Redis is back near its start, nothing stays for ever"
    DRAINS = "drains: exit code 0 within the grace period"
    PROCESSES = "processes: nobody ends by himself"


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation. `number`: the job's, where it is about one."""

    invariant: Invariant
    detail: str
    number: int | None = None
    missing: bool = False
    """something is not there that should be"""


def check(evidence: Evidence) -> list[Finding]:
    parts: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
        _deliveries,
        _raised,
        _submissions,
        _logs,
        _moves,
        _deadlines,
        _waits,
        _dead_letters,
        _redis_is_empty,
        _surprises,
        _crowds,
        _stretches,
        _workers_are_idle,
        _memory,
        _drains,
        _processes,
    )
    return [finding for part in parts for finding in part(evidence)]


def is_terminal(event: dict[str, Any]) -> bool:
    return bool(event["type"] != "tokens")


def _deliveries(evidence: Evidence) -> Iterator[Finding]:
    for number in sorted(set(evidence.ids) | set(evidence.delivered)):
        events = evidence.delivered.get(number, [])
        yield from _order(number, events)
        yield from _end(number, events)
        yield from _content(evidence, number, events)
        yield from _outcome(evidence, evidence.job(number), events)


def _raised(evidence: Evidence) -> Iterator[Finding]:
    for raised in evidence.raised:
        yield Finding(Invariant.RAISED, f"{raised.error} at {raised.at:.3f}", raised.number)


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


def _content(evidence: Evidence, number: int, events: list[dict[str, Any]]) -> Iterator[Finding]:
    answer = evidence.answers.get(number)
    tokens = [token for event in events for token in event.get("token_ids", ())]
    text = "".join(event.get("text", "") for event in events)
    if answer is None:
        if tokens:
            yield Finding(Invariant.SEAMS, "a job that cannot run has tokens", number)
    elif any(event["type"] == "finished" for event in events):
        if (tuple(tokens), text) != (answer.tokens, answer.text):
            yield Finding(Invariant.SEAMS, _first_difference(tokens, answer.tokens), number)
    elif tuple(tokens) != answer.tokens[: len(tokens)] or not answer.text.startswith(text):
        yield Finding(Invariant.SEAMS, _first_difference(tokens, answer.tokens), number)


def _first_difference(tokens: list[int], expected: tuple[int, ...]) -> str:
    for index, (one, other) in enumerate(zip(tokens, expected, strict=False)):
        if one != other:
            return f"token {index} is {one}, undisturbed {other}"
    return f"{len(tokens)} tokens, undisturbed {len(expected)}; or the text differs"


def _outcome(evidence: Evidence, job: JobPlan, events: list[dict[str, Any]]) -> Iterator[Finding]:
    ends = [event for event in events if is_terminal(event)]
    if not ends or ends[0]["type"] == "error":
        return  # counted as lost
    got = ends[0].get("code", ends[0]["type"])
    if job.number in evidence.failures:
        allowed = {evidence.failures[job.number]}
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


def _submissions(evidence: Evidence) -> Iterator[Finding]:
    """A producer that repeats itself gets the same job, and the stream one entry."""
    ids: dict[int, str] = {}
    for number, job_id in evidence.submitted:
        if ids.setdefault(number, job_id) != job_id:
            yield Finding(
                Invariant.DOUBLED, f"submitted as {ids[number]} and {job_id}", number, missing=True
            )
    by_client = sum(number < RAW_BASE for number in ids)
    expected = by_client + evidence.raw_entries
    if evidence.redis.entries_added != expected:
        yield Finding(
            Invariant.DOUBLED,
            f"{evidence.redis.entries_added} entries were added for {by_client} jobs and "
            f"{evidence.raw_entries} raw entries",
            missing=evidence.redis.entries_added < expected,
        )


def _logs(evidence: Evidence) -> Iterator[Finding]:
    for number, job_id in evidence.ids.items():
        if number in evidence.expired:
            continue
        log = evidence.redis.logs.get(job_id, [])
        for entry, event in log:
            cursor = event["index"] + len(event.get("token_ids", ()))
            if entry != f"{cursor}-{int(is_terminal(event))}":
                yield Finding(Invariant.LOG, f"entry {entry} for an event up to {cursor}", number)
        delivered = [_comparable(event) for event in evidence.delivered.get(number, [])]
        if delivered != [_comparable(event) for _, event in log]:
            yield Finding(
                Invariant.LOG, f"{len(log)} events logged, {len(delivered)} delivered", number
            )


def _comparable(event: dict[str, Any]) -> dict[str, Any]:
    """JSON has made lists of tuples."""
    if "token_ids" in event:
        return event | {"token_ids": list(event["token_ids"])}
    return event


def _moves(evidence: Evidence) -> Iterator[Finding]:
    numbers = {job_id: number for number, job_id in evidence.submitted}
    for one, next_one in moves(evidence):
        if cause(evidence, one, next_one) is None:
            yield Finding(
                Invariant.MOVED,
                f"from {one.life} at token {one.done} to {next_one.life} at token "
                f"{next_one.done} after {next_one.at - one.at:.1f} s",
                numbers.get(one.job_id),
            )


def cause(evidence: Evidence, one: Take, next_one: Take) -> str | None:
    """Why a job left the worker that took it: that worker was in trouble meanwhile.

    Or the next one was: the engine of a frozen worker begins late on a job taken long before.
    """
    lives = {life.name: life for life in evidence.lives}
    life, next_life = lives[one.life], lives[next_one.life]
    if life.ended is not None and life.ended <= next_one.at + _AT_ONCE_S:
        return str(life.end)
    if life.told_at is not None and life.told_at <= next_one.at:
        return str(End.DRAINED)
    meanwhile = (one.at - _AT_ONCE_S, next_one.at)
    just_now = (next_one.at - _AT_ONCE_S, next_one.at)
    partition = partition_of(one.job_id)
    return _trouble_during(evidence, life, partition, *meanwhile) or _trouble_during(
        evidence, next_life, partition, *just_now
    )


def _trouble_during(
    evidence: Evidence, life: Life, partition: int, after: float, before: float
) -> str | None:
    troubles = [Trouble(*span, "stopped", life.process) for span in life.stopped]
    for trouble in [*troubles, *evidence.troubles]:
        if (
            trouble.concerns(life.process, partition)
            and trouble.began <= before
            and trouble.ended >= after
        ):
            return trouble.what
    return None


def _deadlines(evidence: Evidence) -> Iterator[Finding]:
    """A deadline counts from the submit; a worker that is held up begins late on what it took."""
    numbers = {job_id: number for number, job_id in evidence.submitted}
    lives = {life.name: life for life in evidence.lives}
    for take in evidence.takes:
        number, entry = numbers.get(take.job_id), evidence.redis.entries.get(take.job_id)
        if number is None or entry is None:
            continue
        deadline_s = evidence.job(number).deadline_s
        if deadline_s is None:
            continue
        late_s = take.at - int(entry.id.partition("-")[0]) / 1000 - deadline_s
        before = take.at - _AT_ONCE_S
        if late_s > _AT_ONCE_S and not _trouble_during(
            evidence, lives[take.life], partition_of(take.job_id), before, take.at
        ):
            detail = f"begun {late_s:.1f} s after its deadline by {take.life}"
            yield Finding(Invariant.DEADLINES, detail, number)


def _waits(evidence: Evidence) -> Iterator[Finding]:
    numbers = {job_id: number for number, job_id in evidence.submitted}
    bounds = Bounds(evidence)
    for invariant, limit_s, waits in (
        (Invariant.TAKEOVER, TAKEOVER_S, bounds.takeovers),
        (Invariant.ORDER, BEHIND_S, bounds.behind),
    ):
        for wait in waits:
            if wait.seconds > limit_s:
                detail = f"{wait.seconds:.1f} s from {wait.since:.3f} on: {wait.why}"
                yield Finding(invariant, detail, numbers.get(wait.job_id))


def _dead_letters(evidence: Evidence) -> Iterator[Finding]:
    """Expected are: each piece of garbage by its place, each poison by its id."""
    ids = evidence.ids
    poison = {
        ids[n] for n in ids if evidence.job(n).kind is Kind.POISON and n not in evidence.retried
    }
    expected = Counter[tuple[str, str]](evidence.garbage)
    expected.update(("poison", job_id) for job_id in poison)
    got: Counter[tuple[str, str]] = Counter()
    for letter in evidence.redis.dead:
        is_poison = letter["id"] in poison and letter["code"] == "crash_loop"
        place = (letter["stream"], letter["entry"])
        got[("poison", letter["id"]) if is_poison else place] += 1
    for where, name in (expected - got).elements():
        yield Finding(Invariant.DEAD_LETTERS, f"none for {where} {name}", missing=True)
    numbers = {job_id: number for number, job_id in evidence.submitted}
    for letter in evidence.redis.dead:
        key = (letter["stream"], letter["entry"])
        if letter["id"] not in poison and key not in expected:
            detail = f"{letter['code']} for an innocent job: {letter['message']}"
            yield Finding(Invariant.DEAD_LETTERS, detail, numbers.get(letter["id"]))
    for (where, name), count in got.items():
        if count > expected[(where, name)] > 0:
            yield Finding(Invariant.DEAD_LETTERS, f"{count} for {where} {name}")


def _redis_is_empty(evidence: Evidence) -> Iterator[Finding]:
    for stream, (entries, pending) in evidence.redis.streams.items():
        if entries or pending:
            yield Finding(Invariant.EMPTY, f"{stream}: {entries} entries, {pending} pending")
    if evidence.redis.queued_tokens:
        yield Finding(Invariant.EMPTY, f"load.tokens is {evidence.redis.queued_tokens}")


def _surprises(evidence: Evidence) -> Iterator[Finding]:
    for surprise in evidence.surprises:
        yield Finding(Invariant.EXPIRY, surprise)


def _crowds(evidence: Evidence) -> Iterator[Finding]:
    for crowd in evidence.crowds:
        for raised in crowd.raised:
            yield Finding(Invariant.CROWD, f"a stream raised {raised}", crowd.number)
        logged = [_as_logged(evidence, crowd)]
        if crowd.number in evidence.expired:  # its log is gone, on purpose
            logged = crowd.given[:1]
        if crowd.given != logged:
            detail = f"{len(crowd.given)} varieties in {crowd.streams} streams, or not the log's"
            yield Finding(Invariant.CROWD, detail, crowd.number)
    for _ in range(evidence.unfinished_crowds):
        yield Finding(Invariant.CROWD, "its streams never ended")
    for name, connections in evidence.connections.items():
        if connections > MAX_CONNECTIONS:
            yield Finding(Invariant.CROWD, f"{name} had {connections} connections at once")


def _as_logged(evidence: Evidence, crowd: Crowd) -> tuple[list[int], str]:
    events = [event for _, event in evidence.redis.logs.get(crowd.job_id, [])]
    tokens = [token for event in events for token in event.get("token_ids", ())]
    return tokens, "".join(event.get("text", "") for event in events)


def _stretches(evidence: Evidence) -> Iterator[Finding]:
    for stretch in evidence.stretches:
        if stretch.events < stretch.least:
            detail = (
                f"{stretch.what}: {stretch.events} events in {stretch.seconds:.1f} s from "
                f"{stretch.began:.3f}"
            )
            yield Finding(Invariant.GOES_ON, detail)


def _workers_are_idle(evidence: Evidence) -> Iterator[Finding]:
    for worker, gauges in evidence.gauges.items():
        for name in ("rose_batch_sequences", "rose_kv_cache_usage_ratio"):
            if gauges.get(name) != 0:
                yield Finding(Invariant.SLOTS, f"{worker}: {name} is {gauges.get(name)}")


def _memory(evidence: Evidence) -> Iterator[Finding]:
    state = evidence.redis
    for key in state.immortal:
        yield Finding(Invariant.MEMORY, f"{key} has no time to live")
    for key in state.unknown:
        yield Finding(Invariant.MEMORY, f"{key} is left")
    more = state.memory_after - state.memory_before
    if more > _MEMORY_SLACK * state.nodes:
        yield Finding(Invariant.MEMORY, f"{more} bytes more than at the start")


def _drains(evidence: Evidence) -> Iterator[Finding]:
    for life in evidence.lives:
        if life.drain_s is not None and (
            life.exit_code != 0 or life.drain_s > evidence.drain_limit_s
        ):
            detail = f"{life.name}: exit code {life.exit_code} after {life.drain_s:.1f} s"
            yield Finding(Invariant.DRAINS, detail)


def _processes(evidence: Evidence) -> Iterator[Finding]:
    for life in evidence.lives:
        if life.end is End.ITSELF:
            yield Finding(Invariant.PROCESSES, f"{life.name}: exit code {life.exit_code}")
