"""The check of tenants notices what is wrong with them, and nothing else."""

from tests.chaos.invariants import Invariant
from tests.chaos.tenant_check import TenantJob, check_tenants, leads, most_at_once
from tests.chaos.tenants import TenantPlan, tenant_of, tenant_plans


def jobs(
    tenant: str,
    *spans: tuple[int, int | None, int | None],
    tokens: int = 50,
    passes: bool = False,
) -> list[TenantJob]:
    """Of each: when it came, when it was given to a worker, and when it ended."""
    return [
        TenantJob(tenant, 0, came, given, ended, tokens, passes) for came, given, ended in spans
    ]


def broken(own: list[TenantJob], *plans: TenantPlan) -> set[object]:
    return {finding.rule for finding in check_tenants(own, plans, partitions=1)}


def test_what_ends_makes_room_for_what_begins_in_the_same_millisecond() -> None:
    assert most_at_once([(1, 5), (5, 9), (2, None), (7, 8)]) == 3
    assert most_at_once([(1, 5), (5, 9)]) == 1
    assert most_at_once([]) == 0


def test_caps_are_held_to() -> None:
    # given two jobs that run at once, and three in the queue
    own = jobs("ann", (0, 10, 30), (1, 20, 40), (2, None, 25))
    # then
    assert broken(own, TenantPlan("ann", 1, max_running=2, max_queued=3)) == set()
    assert broken(own, TenantPlan("ann", 1, max_running=1)) == {Invariant.CAPS}
    assert broken(own, TenantPlan("ann", 1, max_queued=2)) == {Invariant.CAPS}


def test_a_partition_has_its_share_of_a_cap() -> None:
    # given
    plan = TenantPlan("ann", 1, max_running=3)
    own = [TenantJob("ann", 1, 0, 0, 9, 1), TenantJob("ann", 1, 0, 0, 9, 1)]
    # then: two in the first of two partitions, one in the other
    assert [f.rule for f in check_tenants(own, [plan], partitions=2)] == [Invariant.CAPS]


def in_turn(first: str, second: str, count: int) -> list[TenantJob]:
    """All come at once; each takes 10 ms, one of each tenant in turn."""
    return [
        job
        for n in range(count)
        for job in (
            *jobs(first, (0, 20 * n, 20 * n + 10)),
            *jobs(second, (0, 20 * n + 10, 20 * n + 20)),
        )
    ]


def test_turns_are_fair_and_a_starved_tenant_is_noticed() -> None:
    plans = TenantPlan("ann", 1), TenantPlan("bob", 1)
    # given turns
    assert broken(in_turn("ann", "bob", 100), *plans) == set()
    # when all of one come first, though both wait
    starved = [
        *jobs("ann", *((0, 10 * n, 10 * n + 10) for n in range(100))),
        *jobs("bob", *((0, 1000 + 10 * n, 1010 + 10 * n) for n in range(100))),
    ]
    # then
    assert broken(starved, *plans) == {Invariant.SHARES}
    # and not where the other one came later, or waits for its own jobs only
    late = [*starved[:100], *jobs("bob", *((1000, 1000 + 10 * n, 1010 + 10 * n) for n in range(9)))]
    assert broken(late, *plans) == set()
    assert broken(starved, plans[0], TenantPlan("bob", 1, max_running=1)) == set()


def test_weights_count() -> None:
    # given turns of two who should not have equal ones
    own = in_turn("ann", "bob", 200)
    # when
    plans = TenantPlan("ann", 1), TenantPlan("bob", 10)
    # then
    (lead,) = [lead for lead in leads(own, plans, 1) if lead.behind == "bob"]
    assert lead.ahead == "ann"
    assert lead.tokens > lead.allowed
    assert broken(own, *plans) == {Invariant.SHARES}


def test_what_passes_is_no_lead_and_is_paid_for() -> None:
    plans = TenantPlan("ann", 1), TenantPlan("bob", 1)
    spans = [(0, 10 * n, 10 * n + 10) for n in range(100)]
    late = [(0, 1000 + 10 * n, 1010 + 10 * n) for n in range(100)]
    # given: all jobs of one pass the other's
    urgent = [*jobs("ann", *spans, passes=True), *jobs("bob", *late)]
    assert broken(urgent, *plans) == set()
    # when that one has something else that waits, too
    turns = [*urgent, *jobs("ann", (500, 2000, 2010))]
    # then the other one may have as much before
    assert broken(turns, *plans) == set()
    # but no more
    more = jobs("bob", *((0, 2010 + 10 * n, 2020 + 10 * n) for n in range(100)))
    assert broken([*turns[:-1], *more, *jobs("ann", (500, 4000, 4010))], *plans) == {
        Invariant.SHARES
    }


def test_whose_a_job_is_depends_on_nothing_but_seed_and_number() -> None:
    # when
    whose = [tenant_of(7, number, 20) for number in range(2000)]
    # then
    assert whose == [tenant_of(7, number, 20) for number in range(2000)]
    assert set(whose) == {"", *(plan.name for plan in tenant_plans(7, 20, 1))}
    assert {tenant_of(7, number, 0) for number in range(50)} == {""}
    # and who is limited has fewer
    limited = {plan.name for plan in tenant_plans(7, 20, 1) if plan.is_limited}
    assert sum(name in limited for name in whose) < len(whose) / 3
