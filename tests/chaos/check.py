"""The invariants: what must be true whatever died. Pure functions of the evidence."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from rose.protocol import partition_of
from tests.chaos.bounds import Bounds
from tests.chaos.context import HAND_BACKS
from tests.chaos.evidence import Evidence, Take, moves
from tests.chaos.findings import Finding
from tests.chaos.invariants import BEHIND_S, MAX_CONNECTIONS, TAKEOVER_S, Invariant
from tests.chaos.job_check import check_job
from tests.chaos.job_record import JobRecord, LogEntry, digest
from tests.chaos.managed_process import End
from tests.chaos.plan import RAW_BASE, Kind
from tests.chaos.tenant_check import check_tenants
from tests.chaos.tenants import tenant_plans

#: Growth of a Redis that is no leak: dead letters, scripts, its own tables.
_MEMORY_SLACK = 1024 * 1024
#: A clock is read shortly before or after the event that it dates.
_AT_ONCE_S = 0.5


def check(evidence: Evidence) -> list[Finding]:
    parts: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
        _jobs,
        _raised,
        _submissions,
        _moves,
        _deadlines,
        _waits,
        _tenants,
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


def _jobs(evidence: Evidence) -> Iterator[Finding]:
    yield from evidence.found
    ids = evidence.ids
    for number in sorted((set(ids) | set(evidence.delivered)) - set(evidence.settled)):
        yield from check_job(
            JobRecord(
                evidence.job(number),
                evidence.delivered.get(number, []),
                _log(evidence, number, ids.get(number)),
                evidence.answers.get(number),
                evidence.failures.get(number),
                evidence.redis.lasted.get(ids.get(number, "")),
            )
        )


def _log(evidence: Evidence, number: int, job_id: str | None) -> list[LogEntry] | None:
    if job_id is None or number in evidence.expired:
        return None
    return evidence.redis.logs.get(job_id, [])


def _raised(evidence: Evidence) -> Iterator[Finding]:
    for raised in evidence.raised:
        yield Finding(Invariant.RAISED, f"{raised.error} at {raised.at:.3f}", raised.number)


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


def _moves(evidence: Evidence) -> Iterator[Finding]:
    numbers = {job_id: number for number, job_id in evidence.submitted}
    for job_id, times in Counter(one.job_id for one in evidence.handed_back).items():
        if times > HAND_BACKS:
            yield Finding(Invariant.MOVED, f"handed back {times} times", numbers.get(job_id))
    for one, next_one in moves(evidence.takes):
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
    life, next_life = evidence.life_of[one.life], evidence.life_of[next_one.life]
    if life.ended is not None and life.ended <= next_one.at + _AT_ONCE_S:
        return str(life.end)
    if life.told_at is not None and life.told_at <= next_one.at:
        return str(End.DRAINED)
    if evidence.made_room(one, next_one.at):
        return "made room"
    meanwhile = (one.at - _AT_ONCE_S, next_one.at)
    just_now = (next_one.at - _AT_ONCE_S, next_one.at)
    partition = partition_of(one.job_id)
    return evidence.befell.during(life.process, partition, *meanwhile) or evidence.befell.during(
        next_life.process, partition, *just_now
    )


def _deadlines(evidence: Evidence) -> Iterator[Finding]:
    """A deadline counts from the submit; a worker that is held up begins late on what it took."""
    numbers = {job_id: number for number, job_id in evidence.submitted}
    for take in evidence.takes:
        number, came_s = numbers.get(take.job_id), evidence.redis.came_s(take.job_id)
        if number is None or came_s is None:
            continue
        deadline_s = evidence.job(number).deadline_s
        if deadline_s is None:
            continue
        late_s = take.at - came_s - deadline_s
        process, partition = evidence.life_of[take.life].process, partition_of(take.job_id)
        if late_s > _AT_ONCE_S and not evidence.befell.during(
            process, partition, take.at - _AT_ONCE_S, take.at
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


def _tenants(evidence: Evidence) -> Iterator[Finding]:
    plan = evidence.plan
    plans = tenant_plans(plan.seed, plan.tenants, plan.partitions)
    passing = evidence.passing
    jobs = [
        replace(job, passes=job_id in passing) for job_id, job in evidence.redis.tenants.items()
    ]
    yield from check_tenants(jobs, plans, plan.partitions)


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
    for key in evidence.redis.returned:
        yield Finding(Invariant.EXPIRY, f"{key} had expired, and is there again")


def _crowds(evidence: Evidence) -> Iterator[Finding]:
    for crowd in evidence.crowds:
        for raised in crowd.raised:
            yield Finding(Invariant.CROWD, f"a stream raised {raised}", crowd.number)
        given = [digest(*said) for said in crowd.given]
        # A log that has expired on purpose is gone.
        expired = crowd.number in evidence.expired
        if given != (given[:1] if expired else [evidence.logged_text(crowd.number, crowd.job_id)]):
            detail = f"{len(crowd.given)} varieties in {crowd.streams} streams, or not the log's"
            yield Finding(Invariant.CROWD, detail, crowd.number)
    for _ in range(evidence.unfinished_crowds):
        yield Finding(Invariant.CROWD, "its streams never ended")
    for name, connections in evidence.connections.items():
        if connections > MAX_CONNECTIONS:
            yield Finding(Invariant.CROWD, f"{name} had {connections} connections at once")


def _stretches(evidence: Evidence) -> Iterator[Finding]:
    bounds = Bounds(evidence)
    for stretch in evidence.stretches:
        owed_s = bounds.owed_s(stretch)
        if stretch.events < int(owed_s * stretch.per_s):
            detail = (
                f"{stretch.what}: {stretch.events} events in {stretch.seconds:.1f} s from "
                f"{stretch.began:.3f}, of which {owed_s:.1f} s count"
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
