"""The schedule is the seed's, and the full run is as hard as it is said to be."""

from collections import Counter
from dataclasses import replace

from tests.chaos.plan import FaultKind, Kind, Plan


def test_the_same_seed_plans_the_same() -> None:
    # given
    one, same, other = Plan(7, 200), Plan(7, 200), Plan(8, 200)
    # then
    assert one.faults() == same.faults()
    assert [one.job(n) for n in range(300)] == [same.job(n) for n in range(300)]
    assert [fault.kind for fault in one.faults()] != [fault.kind for fault in other.faults()]
    assert one.job(5) != other.job(5)


def test_the_full_run_is_hard_to_survive() -> None:
    # given
    plan = Plan(1, 5000)
    # when
    faults = Counter(fault.kind for fault in plan.faults())
    # then
    kills = FaultKind.KILL_WORKER, FaultKind.KILL_PRODUCER, FaultKind.KILL_SUBSCRIBER
    assert sum(faults[kind] for kind in kills) >= 100
    assert faults[FaultKind.STOP_WORKER] >= 50
    assert faults[FaultKind.RESTART_REDIS] >= 10
    assert faults[FaultKind.CUT] >= 100
    assert len(plan.poisons) + faults[FaultKind.GARBAGE] >= 50


def test_a_short_run_has_some_of_everything() -> None:
    # given
    plan = Plan(3, 100)
    # then
    assert all(plan.doses().values())
    assert len(plan.poisons) == 1
    assert {plan.job(n).kind for n in range(100)} == set(Kind)


def test_faults_strike_in_order_and_before_the_last_job() -> None:
    # given
    times = [fault.at for fault in Plan(1, 500).faults()]
    # then
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 1


def test_shorter_texts_change_nothing_else() -> None:
    # given
    plan, brief = Plan(3, 1000), Plan(3, 1000, brevity=2.0)
    # then
    assert brief.faults() == plan.faults()
    for n in range(1000):
        job, shorter = plan.job(n), brief.job(n)
        assert replace(shorter, sampling=job.sampling) == job
        if job.kind is Kind.PLAIN:
            tokens = shorter.sampling["max_new_tokens"]
            assert tokens == max(1, round(job.sampling["max_new_tokens"] / 2))
