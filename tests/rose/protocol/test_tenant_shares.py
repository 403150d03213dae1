"""Whose job is next: slots are shared among tenants by weight and tokens."""

from collections import Counter

from rose.protocol.tenants import TenantLimits
from rose_producer import Tenants
from tests.support.bench import Bench
from tests.support.floor import Floor


def test_who_comes_after_a_flood_is_next(bench: Bench, floor: Floor) -> None:
    # given: a flood of one tenant fills the slots
    floor.submit("flood", 40)
    assert floor.begin(4) == ["flood"] * 4
    # when
    floor.submit("guest")
    # then: in the first slot that is free
    floor.end_first()
    assert floor.begin(1) == ["guest"]
    # and a job without a tenant, too
    floor.submit("")
    floor.end_first()
    assert floor.begin(1) == [""]


def test_slots_are_shared_by_weight_and_tokens(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: twice the weight, and three times as long answers
    tenants.set("heavy", TenantLimits(weight=2))
    answers = {"heavy": 300, "light": 100}
    for tenant in answers:
        floor.submit(tenant, 120)
    floor.begin(6)
    tokens: Counter[str] = Counter()
    # when
    for _ in range(110):
        tenant = floor.leases[0][0]
        floor.end_first(answers[tenant])
        tokens[tenant] += answers[tenant] + 1  # and that of the prompt
        floor.begin(1)
    # then: to within the jobs that run, with their prompts and what is charged in advance
    assert abs(tokens["heavy"] / 2 - tokens["light"]) <= 6 * (300 + 1 + 128)
    # and not by jobs: twice as many of three times as long answers
    assert tokens["heavy"] < 4 * tokens["light"]


def test_idling_saves_nothing_up(floor: Floor) -> None:
    # given: one works for long while the other idles
    floor.submit("busy", 80)
    floor.begin(2)
    for _ in range(30):
        floor.end_first()
        floor.begin(1)
    # when
    floor.submit("late", 40)
    begun: Counter[str] = Counter()
    for _ in range(10):
        floor.end_first()
        begun.update(floor.begin(1))
    # then
    assert 4 <= begun["late"] <= 6


def test_priorities_act_within_a_tenant_and_age(bench: Bench) -> None:
    # given: those of others do not count
    bench.redis.hset(bench.partition.model, mapping={"name": "m", "ageing_ms": 60_000})
    submit = bench.client.submit
    low, high = (submit("x", tenant="t", priority=one).id for one in ("low", "high"))
    normal = submit("x", tenant="t").id
    # when / then
    assert [job.job_id for _ in range(3) for job in bench.fetch("w", 1)] == [high, normal, low]
    # and without time to age, the first is the first
    bench.redis.hset(bench.partition.model, "ageing_ms", 0)
    first, second = (submit("x", tenant="t", priority=one).id for one in ("low", "high"))
    assert [job.job_id for _ in range(2) for job in bench.fetch("w", 1)] == [first, second]
