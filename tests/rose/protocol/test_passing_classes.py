"""Classes of priority that pass: their jobs go before all tenants' shares."""

from rose.protocol import Priority, calls
from rose.protocol.tenants import TenantLimits
from rose_producer import Tenants
from tests.support.bench import Bench, wait_until
from tests.support.floor import Floor


def wait_a_millisecond(bench: Bench) -> None:
    """Of Redis: what comes in the same one is in no order."""
    before = bench.redis.time()
    wait_until(lambda: bench.redis.time() > (before[0], before[1] + 1000))


def test_a_class_that_passes_goes_before_all_tenants_shares_in_the_order_of_coming(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: a tenant that has used much, one that has used nothing, and jobs of nobody
    tenants.set_passing({Priority.HIGH})
    submit = bench.client.submit
    floor.submit("busy")
    floor.begin(1)
    floor.end_first(500)
    waiting = submit("x", tenant="busy").id
    guest, nobodys = submit("x", tenant="guest").id, submit("x").id
    # when
    urgent = []
    for one in ("busy", "", "guest", "busy"):
        wait_a_millisecond(bench)
        urgent.append(submit("x", tenant=one, priority="high").id)
    # then
    assert [[job.job_id for job in bench.fetch("w")] for _ in urgent] == [[job] for job in urgent]
    assert {job.job_id for job in bench.fetch("w", 9)} == {waiting, guest, nobodys}
    # and nothing passes once it may not
    tenants.set_passing(())
    normal, high = (submit("x", tenant="guest", priority=one).id for one in ("normal", "high"))
    assert [job.job_id for job in bench.fetch("w", 9)] == [high, normal]


def test_a_class_passes_among_jobs_without_a_tenant_also_where_no_tenant_may_run_more(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: a tenant that has as many jobs running as it may, and one that waits
    tenants.set_passing({Priority.LOW})
    tenants.set("full", TenantLimits(max_running_jobs=1))
    floor.submit("full", 2)
    assert floor.begin(1) == ["full"]
    normal, low = (bench.client.submit("x", priority=one).id for one in ("normal", "low"))
    # when / then
    assert [job.job_id for _ in range(2) for job in bench.fetch("w", 1)] == [low, normal]


def test_what_passes_is_charged_and_held_to_the_limits(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given
    tenants.set_passing({Priority.HIGH})
    tenants.set("rude", TenantLimits(max_running_jobs=2))
    floor.submit("rude", 3, priority="high")
    floor.submit("rude")
    floor.submit("meek", 6)
    # when / then: no more than it may
    assert floor.begin(3) == ["meek", "rude", "rude"]
    assert tenants.show("rude").limited
    # and once more
    while floor.end_first(400) != "rude":
        pass
    assert floor.begin(1) == ["rude"]
    # and what has passed counts: the others are served until they have used as much
    while floor.leases:
        floor.end_first(400)
    assert floor.begin(2) == ["meek", "meek"]


def test_a_passing_class_hides_nobody_who_waits_longer(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: a tenant's job has waited for long, and one passes it
    tenants.set_passing({Priority.HIGH})
    (old,) = floor.submit("t")
    bench.redis.hset(bench.partition.state(old.id), "enqueued_ms", 5)
    floor.submit("t", priority="high")
    # then
    assert tenants.show("t").oldest_waiting_ms == 5
    assert bench.call(calls.oldest_waiting(bench.partition))[-1] == b"5-0"


def test_what_passes_does_so_also_once_its_tenant_has_another_name(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given
    tenants.set_passing({Priority.LOW})
    floor.submit("guest")
    urgent = bench.client.submit("x", tenant="old", priority="low").id
    # when
    tenants.rename("old", "new")
    # then
    assert tenants.passing() == (Priority.LOW,)
    assert tenants.list() == {}
    assert [job.job_id for job in bench.fetch("w")] == [urgent]
