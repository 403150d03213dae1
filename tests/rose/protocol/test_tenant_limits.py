"""What each tenant may have, and what counts no more."""

import pytest

from rose.errors import DeadlineExceeded, InvalidParameter, JobCancelled, TenantLimited
from rose.protocol import FailedEvent, calls
from rose.protocol.tenants import TenantLimits
from rose_producer import Tenants
from tests.support.bench import Bench, dead_letter
from tests.support.floor import Floor


def left_behind(bench: Bench) -> list[str]:
    """What the queue still holds on account of tenants, but for what it remembers of each."""
    shares = bench.partition.load.removesuffix("load") + "shares:"
    kept = {shares + name for name in ("clock", "worker", "tenants", "jobs")}
    return [
        key for key in map(bytes.decode, bench.redis.scan_iter(shares + "*")) if key not in kept
    ]


def test_no_more_run_than_a_tenant_may_and_others_have_the_slots(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given
    tenants.set("small", TenantLimits(max_running_jobs=2))
    floor.submit("small", 5)
    floor.submit("large", 5)
    # when / then
    assert floor.begin(10) == ["large"] * 5 + ["small"] * 2
    assert floor.begin(10) == []
    assert tenants.show("small").limited
    # and when one of them ends, the next one is woken for
    before = bench.redis.xrevrange(bench.partition.wakeup)
    while floor.end_first() != "small":
        pass
    assert bench.redis.xrevrange(bench.partition.wakeup) != before
    assert floor.begin(10) == ["small"]
    # and a new limit holds at once
    tenants.set("small", TenantLimits(max_running_jobs=4))
    assert floor.begin(10) == ["small"] * 2


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (TenantLimits(max_queued_jobs=2), "max_queued_jobs"),
        (TenantLimits(max_queued_bytes=2500), "max_queued_bytes"),
        (TenantLimits(max_queued_tokens=30), "max_queued_tokens"),
        (TenantLimits(requests_per_minute=2), "requests_per_minute"),
        (TenantLimits(tokens_per_minute=30), "tokens_per_minute"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tenant_is_refused_what_it_may_not_have_and_nobody_else_is(
    floor: Floor, tenants: Tenants, limits: TenantLimits, limit: str
) -> None:
    # given: 11 tokens each
    tenants.set("t", limits)
    floor.submit("t", 2, max_new_tokens=10)
    # when
    with pytest.raises(TenantLimited) as refused:
        # A minute's limit refills: on a slow machine one more may fit in between.
        floor.submit("t", 50, max_new_tokens=10)
    # then
    error = refused.value
    assert (error.code, error.tenant, error.limit) == ("tenant_limited", "t", limit)
    assert error.maximum == getattr(limits, limit)
    assert 0 < error.retry_after_s <= 60
    floor.submit("other", 3)
    floor.submit("", 3)


def test_what_has_ended_counts_no_more(bench: Bench, floor: Floor, tenants: Tenants) -> None:
    # given: as many as it may have, of which one ends in each way
    tenants.set("t", TenantLimits(max_queued_jobs=5))
    _, _, cancelled, late, deleted = (
        *floor.submit("t", 3),
        *floor.submit("t", deadline_s=1000),
        *floor.submit("t"),
    )
    with pytest.raises(TenantLimited):
        floor.submit("t")
    assert left_behind(bench)
    # when
    assert floor.begin(2) == ["t", "t"]
    floor.end_first(2)
    _, lease = floor.leases.pop()
    failed = FailedEvent(index=0, code="crash_loop", message="as the test wishes")
    bench.call(dead_letter(bench, lease.entry, lease.job_id, failed))
    assert cancelled.cancel()
    assert deleted.delete()
    bench.redis.zadd(bench.partition.tenant_deadlines, {late.id: 1})
    bench.call(calls.sweep(bench.partition, [], again_s=60))
    # then: at once, without a slot
    with pytest.raises(JobCancelled):
        cancelled.result()
    with pytest.raises(DeadlineExceeded):
        late.result()
    status = tenants.show("t")
    assert (status.waiting, status.running) == (0, 0)
    assert (status.queued_tokens, status.queued_bytes) == (0, 0)
    assert left_behind(bench) == []
    load = bench.redis.hgetall(bench.partition.load)
    assert (load[b"tokens"], load[b"bytes"], load[b"parked_normal"]) == (b"0", b"0", b"0")
    assert floor.begin(5) == []
    floor.submit("t", 5)


def test_limits_are_divided_among_partitions_and_found_again(bench: Bench) -> None:
    # given
    limits = TenantLimits(2.5, max_running_jobs=8, tokens_per_minute=1000)
    settings = bench.client.settings.model_copy(update={"partitions": 3})
    with Tenants(settings) as tenants:
        # when
        tenants.set("t", limits)
        # then
        assert tenants.list() == {"t": limits}
        assert tenants.show("t").limits == limits
        assert [limits.share(i, 3).max_running_jobs for i in range(3)] == [3, 3, 2]
        with pytest.raises(InvalidParameter, match="max_running_jobs"):
            tenants.set("t", TenantLimits(max_running_jobs=2))
        assert tenants.remove("t")
        assert not tenants.remove("t")
        assert tenants.list() == {}
