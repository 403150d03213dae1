"""What must be true of tenants, whatever died: pure functions of what Redis says of their jobs.

All times are Redis' own: when a job came, when it was first given to a worker, and when it ended.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tests.chaos.findings import Finding
from tests.chaos.invariants import Invariant
from tests.chaos.tenants import TenantPlan

#: Tokens that are charged for the longest job.
_MAX_JOB_TOKENS = 200


@dataclass(frozen=True, slots=True)
class TenantJob:
    """Milliseconds by Redis' clock."""

    tenant: str
    partition: int
    came: int
    given: int | None
    """to a worker, for the first time; None: it ended while it waited"""
    ended: int | None
    tokens: int
    """of its answer"""
    passes: bool = False
    """It goes before all tenants' shares."""


@dataclass(frozen=True, slots=True)
class Lead:
    """How far one tenant got ahead of another that had jobs waiting all the time."""

    ahead: str
    behind: str
    tokens: float
    """a weight"""
    allowed: float


def check_tenants(
    jobs: Iterable[TenantJob], plans: Sequence[TenantPlan], partitions: int
) -> Iterator[Finding]:
    for index, own in _by_partition(jobs):
        for plan in plans:
            mine = [job for job in own if job.tenant == plan.name]
            yield from _caps(plan, mine, index, partitions)
    for lead in leads(jobs, plans, partitions):
        if lead.tokens > lead.allowed:
            detail = (
                f"{lead.ahead} got {lead.tokens:.0f} tokens a weight ahead of {lead.behind}, which "
                f"had jobs waiting; at most {lead.allowed:.0f}"
            )
            yield Finding(Invariant.SHARES, detail)


def most_at_once(spans: Iterable[tuple[int, int | None]]) -> int:
    """Of half-open spans; what ends in the millisecond in which another begins has ended before."""
    changes = sorted(
        change
        for began, ended in spans
        for change in ((began, 1), *(() if ended is None else ((ended, -1),)))
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def leads(
    jobs: Iterable[TenantJob], plans: Sequence[TenantPlan], partitions: int
) -> Iterator[Lead]:
    """The greatest lead over each tenant, in each partition.

    A scheduler that charges for a job when it is given out, and settles when it ends, may be wrong
    by the jobs that run and by one more.
    """
    weights = {plan.name: plan.weight for plan in plans}
    for _, own in _by_partition(jobs):
        by_tenant: dict[str, list[TenantJob]] = defaultdict(list)
        for job in own:
            by_tenant[job.tenant].append(job)
        slack = {
            name: (2 + _running(of)) * _MAX_JOB_TOKENS / weights[name]
            for name, of in by_tenant.items()
        }
        for plan in plans:
            if plan.max_running is not None or plan.name not in by_tenant:
                continue  # it waits for its own jobs, too
            greatest = max(
                (
                    Lead(name, plan.name, tokens, slack[name] + slack[plan.name])
                    for name in by_tenant
                    if name != plan.name
                    for tokens in [_lead(by_tenant[name], by_tenant[plan.name], weights)]
                ),
                key=lambda lead: lead.tokens - lead.allowed,
                default=None,
            )
            if greatest is not None:
                yield greatest


def _caps(
    plan: TenantPlan, jobs: Sequence[TenantJob], index: int, partitions: int
) -> Iterator[Finding]:
    running = _running(jobs)
    queued = most_at_once((job.came, job.ended) for job in jobs)
    for what, count, cap in (
        ("running", running, plan.max_running),
        ("queued", queued, plan.max_queued),
    ):
        if cap is not None and count > (most := cap // partitions + (index < cap % partitions)):
            detail = f"{plan.name} had {count} jobs {what} in partition {index}, of {most} at most"
            yield Finding(Invariant.CAPS, detail)


def _running(jobs: Iterable[TenantJob]) -> int:
    return most_at_once((job.given, job.ended) for job in jobs if job.given is not None)


def _lead(
    ahead: Sequence[TenantJob], behind: Sequence[TenantJob], weights: Mapping[str, int]
) -> float:
    """The most tokens a weight that one was given more than the other, within a time in which the
    other had jobs waiting.

    What passes is nobody's lead. Its tenant pays for it all the same: others may have as much
    before it gets anything else, also if it had no jobs waiting meanwhile.
    """
    changes: list[tuple[int, int, float, float]] = []
    for job in behind:
        until = job.given if job.given is not None else job.ended
        changes.append((job.came, 1, 0.0, 0.0))
        if until is not None:
            changes.append((until, -1, 0.0, 0.0))
        if job.given is not None:
            tokens = job.tokens / weights[job.tenant]
            changes.append((job.given, 0, -tokens, tokens if job.passes else 0.0))
    for job in ahead:
        if job.given is not None and not job.passes:
            tokens = job.tokens / weights[job.tenant]
            changes.append((job.given, 0, tokens, -tokens))
    greatest = lead = owes = 0.0
    waiting = 0
    for _, now in groupby(sorted(changes), key=lambda change: change[0]):
        for _, more, tokens, owed in now:
            waiting += more
            lead += tokens
            owes = max(0.0, owes + owed)
        lead = max(-owes, lead) if waiting else -owes
        greatest = max(greatest, lead)
    return greatest


def _by_partition(jobs: Iterable[TenantJob]) -> Iterator[tuple[int, list[TenantJob]]]:
    ordered = sorted(jobs, key=lambda job: job.partition)
    for index, own in groupby(ordered, key=lambda job: job.partition):
        yield index, list(own)
