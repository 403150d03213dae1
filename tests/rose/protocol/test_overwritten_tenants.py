"""Whatever somebody else has written into the keys of tenants, the others' jobs go on."""

import pytest

from rose.protocol.tenants import TenantLimits
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Tenants
from tests.conftest import needs_redis_server
from tests.support.bench import Bench
from tests.support.floor import Floor

# fakeredis answers differently where a call inside a script fails.
pytestmark = needs_redis_server


@pytest.fixture
def any_broker(broker: EmbeddedBroker) -> EmbeddedBroker:
    return broker


#: And whether it is seen before the next job or fetch makes it anew.
KEYS = {
    **{f"shares:{name}": True for name in ("tenants", "ready", "heads", "jobs", "deadlines")},
    "shares:clock": False,
    "idle:wakeup": False,
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_that_somebody_has_written_over_stops_nobody(
    bench: Bench, floor: Floor, tenants: Tenants, kind: str
) -> None:
    # given: jobs of nobody, of one who is held to his limit, and of two others
    tenants.set("small", TenantLimits(max_running_jobs=1))
    floor.submit("small", 3)
    assert floor.begin(1) == ["small"]
    floor.submit("ann", 2, deadline_s=1000)
    floor.submit("bob", 2)
    floor.submit("", 2)
    key = bench.partition.load.removesuffix("load") + kind
    # when
    bench.redis.set(key, "somebody's")
    # then: all begin, and no more than may
    assert bench.client.tenants().overwritten == ((key,) if KEYS[kind] else ())
    begun = floor.begin(9)
    assert [one for one in begun if one != "small"] == ["", "", "ann", "ann", "bob", "bob"]
    assert "small" not in begun
    # and everything goes on
    floor.submit("ann", deadline_s=1000)
    while floor.leases:
        floor.end_first(3)
        floor.begin(9)
    after = bench.client.tenants()
    assert (after.overwritten, after.waiting, after.count) == ((), 0, 0)
    # and it is said which it was; the wake-up stream holds nothing that could be lost
    assert after.mended == (() if kind == "idle:wakeup" else (key,))


def test_a_key_of_one_tenant_that_somebody_has_written_over_stops_nobody_else(
    bench: Bench, floor: Floor
) -> None:
    # given
    floor.submit("ann", 3)
    assert floor.begin(1) == ["ann"]
    floor.submit("bob", 2)
    floor.submit("")
    # when
    bench.redis.set(bench.partition.parked("ann"), "somebody's")
    # then
    begun = floor.begin(9)
    assert [one for one in begun if one != "ann"] == ["", "bob", "bob"]
    while floor.leases:
        floor.end_first(3)
    floor.submit("ann")
    assert floor.begin(9) == ["ann"]


def test_records_that_somebody_has_written_over_are_made_anew_where_running_jobs_end(
    bench: Bench, floor: Floor
) -> None:
    # given: who is opened first is among those whose jobs run
    floor.submit("ann", 2)
    floor.submit("bob", 2)
    assert sorted(floor.begin(3)) == ["ann", "ann", "bob"]
    # when
    bench.redis.set(bench.partition.load.removesuffix("load") + "shares:tenants", "somebody's")
    assert floor.end_first(3) == "ann"
    # then
    assert floor.begin(9) == ["bob"]
    while floor.leases:
        floor.end_first(3)
    after = bench.client.tenants()
    assert (after.waiting, after.count) == (0, 0)


@pytest.mark.parametrize("order", ["parked:ann", "heads", "ready", "jobs", "deadlines"])
def test_a_lone_job_finds_its_place_where_somebody_has_written_over_an_order(
    bench: Bench, floor: Floor, order: str
) -> None:
    # given: a worker that looks for parked jobs, an idle tenant, and a job of another
    prefix = bench.partition.load.removesuffix("load")
    bench.redis.set(prefix + "shares:worker", 1)
    floor.submit("ann")
    floor.begin(1)
    floor.end_first(3)
    (bob,) = floor.submit("bob")
    bench.redis.set(prefix + f"shares:{order}", "somebody's")
    # when
    (ann,) = floor.submit("ann", deadline_s=1000)
    # then
    member = ann.id if order in ("parked:ann", "deadlines") else "ann"
    assert bench.redis.zscore(prefix + f"shares:{order}", member) is not None
    assert bench.client.tenants().mended == (prefix + f"shares:{order}",)
    assert {job.job_id for job in bench.fetch("w", 9)} == {ann.id, bob.id}
