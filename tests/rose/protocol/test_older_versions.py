"""Workers of the version before, and what they have left of tenants' jobs."""

from rose.protocol import calls
from rose_producer import Tenants
from tests.support.bench import Bench
from tests.support.floor import Floor


def test_workers_of_the_version_before_get_tenants_jobs_as_any_others(bench: Bench) -> None:
    # given: one job is parked; then only workers live that never said that they know of tenants
    parked = bench.client.submit("x", tenant="t").id
    assert bench.lengths() == [0, 0, 0]
    bench.redis.xgroup_createconsumer(bench.partition.all_jobs[1], "workers", "old")
    # when
    direct = bench.client.submit("x", tenant="t").id
    # then: both stand where those look
    assert bench.lengths() == [0, 2, 0]
    assert bench.client.job(parked).status().tenant == "t"
    # and once a new one has come, they are parked
    facts = {"name": "m", "fingerprint": "f"}
    bench.call(calls.announce(bench.partition, "new", facts, mode="join", slots=1))
    new = bench.client.submit("x", tenant="t").id
    assert bench.lengths() == [0, 2, 0]
    assert {job.job_id for job in bench.fetch("new", 3)} == {parked, direct, new}


def test_what_the_version_before_has_parked_is_served_in_its_order(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: three jobs as it kept them: without an entry, and their messages in a hash
    jobs = floor.submit("t", 3)
    own = bench.partition.load.removesuffix("load")
    for place, job in enumerate(jobs):
        state = bench.partition.state(job.id)
        entry = bench.redis.hget(state, "entry")
        ((_, fields),) = bench.redis.xrange(bench.partition.tenant_jobs, entry, entry)
        bench.redis.hset(f"{own}tenants:messages", job.id, fields[b"job"])
        bench.redis.zadd(f"{own}tenant:t:parked", {job.id: 10 - place})
        bench.redis.hdel(state, "share", "stream", "entry")
        bench.redis.hset(state, mapping={"counted": "1", "prompt": "1"})
    for name in ("tenants", "heads", "ready", "jobs", "parked:t"):
        bench.redis.delete(f"{own}shares:{name}")
    bench.redis.delete(bench.partition.tenant_jobs)
    bench.redis.hset(f"{own}tenants:clock", "vtime", "0")
    bench.redis.zadd(f"{own}tenants:jobs", {"t": 3})
    bench.redis.hset(f"{own}tenant:t", "vtime", "5")
    # when: a worker of it lives still, and then no more
    bench.redis.set(f"{own}tenants:worker", "1")
    bench.call(calls.sweep(bench.partition, [], again_s=60))
    assert bench.redis.exists(f"{own}tenants:clock")
    bench.redis.delete(f"{own}tenants:worker")
    bench.call(calls.sweep(bench.partition, [], again_s=60))
    # then
    assert tenants.show("t").waiting == 3
    fetched = [job.job_id for _ in range(3) for job in bench.fetch("w", 1)]
    assert fetched == [job.id for job in reversed(jobs)]
    assert not list(bench.redis.scan_iter(f"{own}tenants:*"))
    assert 0 < bench.redis.ttl(f"{own}tenant:t") <= 86400
