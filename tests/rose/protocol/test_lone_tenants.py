"""A lone job of a tenant of whom nothing waits is parked as with the accounts that others need."""

import pytest

from rose.errors import TenantLimited
from rose.protocol import Priority
from rose.protocol.tenants import TenantLimits
from rose_producer import Request, Tenants
from tests.support.bench import Bench
from tests.support.floor import Floor

_AGEING_MS = 5000
_LEVELS = {"high": 0, "normal": 1, "low": 2}


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A worker lives that looks for parked jobs."""
    bench.redis.set(_key(bench, "shares:worker"), 1)
    bench.redis.hset(bench.partition.model, "ageing_ms", _AGEING_MS)
    return bench


def _key(bench: Bench, name: str) -> str:
    return bench.partition.load.removesuffix("load") + name


def _record(bench: Bench, tenant: str) -> list[str]:
    """VTIME LAST TOKENS BYTES SERVED JOBS RUNNING PARKED DUE READY"""
    record = bench.redis.hget(_key(bench, "shares:tenants"), tenant)
    assert record is not None
    return record.decode().split()


def _places(bench: Bench, tenant: str) -> dict[str, float | None]:
    names = ("heads", "ready", "jobs")
    return {name: bench.redis.zscore(_key(bench, f"shares:{name}"), tenant) for name in names}


def _run(floor: Floor, *tenants: str) -> None:
    """A job of each is submitted, given to a worker, and ends."""
    for tenant in tenants:
        floor.submit(tenant)
        floor.begin(1)
    for _ in tenants:
        floor.end_first(5)


def _fetched(bench: Bench) -> set[str]:
    return {job.job_id for job in bench.fetch("w", 9)}


@pytest.mark.parametrize("running", [0, 1, 2])
@pytest.mark.parametrize("priority", _LEVELS)
def test_what_is_written_of_a_lone_job_is_what_a_book_would_write(
    bench: Bench, floor: Floor, tenants: Tenants, priority: str, running: int
) -> None:
    # given: two of the same history
    for name in ("ann", "bob"):
        tenants.set(name, TenantLimits(weight=2))
    for _ in range(2):
        _run(floor, "ann", "bob")
    for _ in range(running):
        floor.submit("ann")
        floor.submit("bob")
        assert floor.begin(2) == ["ann", "bob"]
    # when: one submits a single job, the other together with somebody else
    ann = bench.client.submit("x", tenant="ann", priority=priority, deadline_s=1000)
    requests = [
        Request("x", tenant=name, priority=priority, deadline_s=1000) for name in ("bob", "eve")
    ]
    bob, eve = bench.client.submit_many(requests)
    # then
    first, second = _record(bench, "ann"), _record(bench, "bob")
    assert first[:1] + first[2:8] + first[9:] == second[:1] + second[2:8] + second[9:]
    for name, job, record in (("ann", ann, first), ("bob", bob, second)):
        due = float(record[8])
        assert due - float(record[1]) == _LEVELS[priority] * _AGEING_MS * 1024
        assert bench.redis.zscore(bench.partition.parked(name), job.id) == due
        assert _places(bench, name)["heads"] == due
        assert bench.redis.zscore(bench.partition.tenant_deadlines, job.id)
    here, there = _places(bench, "ann"), _places(bench, "bob")
    assert (here["ready"], here["jobs"]) == (there["ready"], there["jobs"])
    assert bench.redis.hget(bench.partition.load, f"parked_{priority}") == b"3"
    assert _fetched(bench) == {ann.id, bob.id, eve.id}


@pytest.mark.parametrize(
    "limits",
    [
        TenantLimits(max_queued_jobs=1),
        TenantLimits(max_queued_tokens=300),
        TenantLimits(requests_per_minute=1),
    ],
)
def test_a_limit_holds_for_a_lone_job(
    bench: Bench, floor: Floor, tenants: Tenants, limits: TenantLimits
) -> None:
    # given: one job of the tenant runs, and nothing of it waits
    tenants.set("ann", TenantLimits(weight=2))
    _run(floor, "ann")
    tenants.set("ann", limits)
    floor.submit("ann", max_new_tokens=200)
    assert floor.begin(1) == ["ann"]
    # when / then
    with pytest.raises(TenantLimited):
        floor.submit("ann", max_new_tokens=200)


def test_a_lone_job_waits_where_its_tenant_runs_as_many_as_it_may(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given
    tenants.set("ann", TenantLimits(max_running_jobs=1))
    _run(floor, "ann")
    floor.submit("ann")
    assert floor.begin(2) == ["ann"]
    # when
    floor.submit("ann")
    # then
    assert floor.begin(2) == []
    floor.end_first(3)
    assert floor.begin(2) == ["ann"]


def test_a_lone_job_of_a_class_that_passes_goes_first(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given
    tenants.set_passing([Priority.HIGH])
    _run(floor, "ann", "bob")
    bob = floor.submit("bob")[0]
    # when
    ann = floor.submit("ann", priority="high")[0]
    # then
    assert [job.job_id for job in bench.fetch("w", 1)] == [ann.id]
    assert [job.job_id for job in bench.fetch("w", 1)] == [bob.id]
