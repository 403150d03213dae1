"""Names of tenants: which are none, and what becomes of jobs whose tenant is renamed."""

import pytest

from rose.errors import InvalidParameter, TenantLimited
from rose.protocol import calls
from rose.protocol.tenants import TenantLimits
from rose_producer import Tenants
from tests.support.bench import Bench
from tests.support.floor import Floor


def test_a_tenant_is_renamed_with_all_it_has_also_after_a_crash_in_the_middle(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: two jobs run, three wait, two may run
    limits = TenantLimits(3, max_running_jobs=2, max_queued_jobs=5, tokens_per_minute=9000)
    tenants.set("old", limits)
    floor.submit("old", 4)
    floor.begin(5)
    urgent = floor.submit("old", priority="high")[0]
    before = tenants.show("old")
    # when: a call is the last one before the crash; then all is done again, and once more
    bench.call(calls.rename_tenant(bench.partition, "old", "new", count=2))
    half = tenants.show("old"), tenants.show("new")
    assert [(one.waiting, one.running) for one in half] == [(1, 2), (2, 0)]
    assert [one.limits for one in half] == [limits, limits]
    assert sum(one.queued_tokens for one in half) == before.queued_tokens
    assert [tenants.rename("old", "new") for _ in range(2)] == [3, 0]
    # then: nothing is left of the old name
    after = tenants.show("new")
    assert (after.waiting, after.running, after.limits) == (3, 2, limits)
    assert (after.queued_tokens, after.queued_bytes) == (before.queued_tokens, before.queued_bytes)
    assert tenants.list() == {"new": limits}
    assert not bench.redis.exists(bench.partition.parked("old"))
    assert not bench.redis.hexists(bench.partition.tenants, "old")
    assert urgent.status().tenant == "new"
    # and limits hold as before, and what ends is counted off
    with pytest.raises(TenantLimited):
        floor.submit("new")
    assert floor.begin(5) == []
    for _ in range(2):
        floor.end_first(3)
    assert [job.job_id for job in bench.fetch("w", 1)] == [urgent.id]
    after = tenants.show("new")
    assert (after.waiting, after.running, after.served_tokens) == (2, 1, 6)


def test_a_tenant_is_not_renamed_to_one_with_other_limits(bench: Bench, tenants: Tenants) -> None:
    # given
    tenants.set("old", TenantLimits(2))
    tenants.set("new", TenantLimits(3))
    job = bench.client.submit("x", tenant="old")
    # when / then
    with pytest.raises(InvalidParameter, match="new has limits of its own"):
        tenants.rename("old", "new")
    with pytest.raises(InvalidParameter, match="has this name already"):
        tenants.rename("old", "old")
    assert job.status().tenant == "old"
    # and without them it joins the other
    assert tenants.remove("old")
    assert tenants.rename("old", "new") == 1
    assert (job.status().tenant, tenants.list()) == ("new", {"new": TenantLimits(3)})


@pytest.mark.parametrize("name", ["a b", "a:b", "x" * 65, "ä"])
def test_a_name_that_is_none_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidParameter, match="tenant"):
        bench.client.submit("x", tenant=name)
