"""One call of each script, on a queue in which it has something to do."""

from collections.abc import Callable
from typing import Any

import redis

from rose.protocol import GROUP, EntryKey, JobEntry, JobSpec, Priority, calls, encode_job
from rose.protocol.calls import Call, QueueLimits, Submission, Take
from rose.protocol.tenants import TenantLimits
from rose_producer import FailedEvent, FinishedEvent, Job
from tests.support.bench import Bench, dead_letter, to_append, token

Prepare = Callable[[Bench], Call]

#: By name: gives the script something to do and returns the call. Some are of a tenant's jobs.
PREPARED: dict[str, Prepare] = {}


def prepared(name: str = "") -> Callable[[Prepare], Prepare]:
    def register(prepare: Prepare) -> Prepare:
        PREPARED[name or prepare.__name__] = prepare
        return prepare

    return register


def late(bench: Bench, job: Job) -> Call:
    """Its deadline has passed."""
    bench.redis.hset(bench.partition.state(job.id), "deadline_ms", "1")
    return calls.end_late(bench.partition, job.id, 0)


def script_of(name: str) -> str:
    for suffix in ("_of_a_tenant", "_with_placement", "_for_an_urgent_job"):
        name = name.removesuffix(suffix)
    return name


def evaluate(client: redis.Redis, call: Call) -> Any:
    """Asks once: the project's own client asks a server that is read-only again and again."""
    return client.eval(call.script.source, len(call.keys), *call.keys, *call.args)


@prepared()
def submit(bench: Bench) -> Call:
    job = JobSpec(id="0-new", prompt="x")
    one = Submission.of(job, encode_job(job), Priority.NORMAL, idempotency_key="k")
    return calls.submit(bench.partition, [one], limits=QueueLimits())


@prepared()
def cancel(bench: Bench) -> Call:
    job = bench.client.submit("x")
    return calls.cancel(bench.partition, job.id)


@prepared()
def end_late(bench: Bench) -> Call:
    return late(bench, bench.client.submit("x", deadline_s=100))


@prepared()
def delete(bench: Bench) -> Call:
    """A job that waits, with all that a job can have."""
    job = bench.client.submit("x", idempotency_key="k", record=b"r", owner="o")
    return calls.delete(bench.partition, job.id)


@prepared()
def fetch(bench: Bench) -> Call:
    bench.client.submit("x")
    bench.client.submit("y", priority="low")
    return calls.fetch(bench.partition, "w", 5, ageing_ms=1)


@prepared()
def fetch_for_an_urgent_job(bench: Bench) -> Call:
    """All slots are taken, and a tenant's job passes."""
    bench.redis.hset(bench.partition.tenant_limits, ":passes", "1")
    bench.client.submit("x", priority="high", tenant="t")
    bench.client.submit("x", priority="low")
    due_before = " ".join(["9999999999999"] * 4)
    return calls.fetch(
        bench.partition, "w", 1, ageing_ms=1, take_id="urgent", hand_backs=due_before
    )


@prepared()
def release_for_an_urgent_job(bench: Bench) -> Call:
    job, lease = bench.begin()
    held, stream = [JobEntry(lease.entry, job.id)], lease.entry.stream
    return calls.release(bench.partition, stream, "w", held, take_ids=[lease.take_id])


#: A job is passed over for a minute at the most.
_PLACEMENT = "60000 1"


def place_jobs(bench: Bench, tenant: str = "") -> Job:
    """Worker `other` has the beginning of the job that waits."""
    facts: dict[str, str | bytes | int] = {"name": "m", "fingerprint": "f", "partitions": 1}
    for worker in ("other", "w"):
        bench.call(
            calls.announce(bench.partition, worker, facts, mode="keep", slots=9, placement=9)
        )
    jobs = [bench.client.submit(text, tenant=tenant) for text in ("x", "y" * 5000, "y" * 9000)]
    fetch = calls.fetch(
        bench.partition, "other", 2, ageing_ms=1, take_id="first", placement=_PLACEMENT
    )
    bench.call(fetch)
    return jobs[-1]


@prepared()
def fetch_with_placement(bench: Bench) -> Call:
    """One job stands aside for this worker, and one is passed over."""
    place_jobs(bench)
    bench.client.submit("y" * 9000)
    aside = calls.fetch(bench.partition, "w", 1, ageing_ms=1, placement=_PLACEMENT)
    bench.call(aside)
    bench.client.submit_many(["z", "y" * 9000])
    return calls.fetch(
        bench.partition, "other", 5, ageing_ms=1, take_id="second", placement=_PLACEMENT
    )


def field_of_state(bench: Bench, job: Job, field: str) -> str:
    value: Any = bench.redis.hget(bench.partition.state(job.id), field)
    return str(value.decode())


@prepared()
def take_with_placement(bench: Bench) -> Call:
    """The only job is passed over."""
    job = place_jobs(bench)
    entry = field_of_state(bench, job, "entry")
    take = Take(EntryKey(bench.partition.jobs(Priority.NORMAL), entry), job.id)
    return calls.take(bench.partition, [take], "w", ttl_s=60, mode="unread", placement=_PLACEMENT)


@prepared()
def take(bench: Bench) -> Call:
    bench.client.submit_many(["x", "y"])
    takes = [Take(*job) for job in bench.fetch("w", 2)]
    return calls.take(bench.partition, takes, "w", ttl_s=60)


@prepared()
def append(bench: Bench) -> Call:
    """Tokens of one job, and tokens and the end of another."""
    bench.client.submit_many(["x", "y"])
    going, ended = (to_append(bench.start("w"), token(0), token(1)) for _ in range(2))
    ended.end = FinishedEvent(index=2, reason="eos", prompt_tokens=1)
    return calls.append(bench.partition, [going, ended], ttl_s=60)


@prepared()
def renew(bench: Bench) -> Call:
    bench.client.submit_many(["x", "y"])
    leases = [bench.start("w"), bench.start("w")]
    return calls.renew(leases[0].entry.stream, "w", [lease.entry.id for lease in leases])


@prepared()
def release(bench: Bench) -> Call:
    bench.client.submit_many(["x", "y"])
    leases = [bench.start("w"), bench.start("w")]
    held = [JobEntry(lease.entry, lease.job_id) for lease in leases]
    return calls.release(bench.partition, leases[0].entry.stream, "w", held)


@prepared()
def hand_on(bench: Bench) -> Call:
    return calls.hand_on(bench.partition, "w", leaves=False)


@prepared()
def reclaim(bench: Bench) -> Call:
    bench.client.submit_many(["x", "y"])
    bench.fetch("w", 2)
    return calls.reclaim(bench.partition, lease_ms=0, interval_ms=0, patience_ms=1000)


@prepared("dead_letter")
def give_up(bench: Bench) -> Call:
    _, lease = bench.begin()
    failed = FailedEvent(index=0, code="crash_loop", message="as the test wishes")
    return dead_letter(bench, lease.entry, lease.job_id, failed)


@prepared()
def retry(bench: Bench) -> Call:
    bench.call(give_up(bench))
    return retried(bench)


@prepared()
def forget(bench: Bench) -> Call:
    bench.client.submit("x")
    bench.finish(bench.start("gone"), 0)
    return calls.forget(bench.partition, idle_ms=0)


@prepared()
def leave(bench: Bench) -> Call:
    """With an entry that the worker does not know of."""
    bench.client.submit("x")
    bench.fetch("w")
    return calls.leave(bench.partition, "w")


@prepared()
def sweep(bench: Bench) -> Call:
    """An entry that nobody owns."""
    bench.client.submit("x")
    (job,) = bench.fetch("w")
    bench.redis.xgroup_delconsumer(job.entry.stream, GROUP, "w")
    return calls.sweep(bench.partition, [], again_s=60)


@prepared()
def queue_status(bench: Bench) -> Call:
    return calls.queue_status(bench.partition)


@prepared()
def elect(bench: Bench) -> Call:
    return calls.elect(bench.partition, "w", lease_ms=60_000)


@prepared()
def oldest_waiting(bench: Bench) -> Call:
    bench.client.submit("x")
    return calls.oldest_waiting(bench.partition)


@prepared()
def create_groups(bench: Bench) -> Call:
    bench.redis.xgroup_destroy(bench.partition.jobs(Priority.LOW), GROUP)
    return calls.create_groups(bench.partition)


@prepared()
def announce(bench: Bench) -> Call:
    facts: dict[str, str | bytes | int] = {"name": "m", "fingerprint": "f", "context_tokens": 9}
    return calls.announce(bench.partition, "w", facts, mode="join", slots=1)


@prepared()
def room(bench: Bench) -> Call:
    return calls.room(bench.partition)


@prepared()
def submit_of_a_tenant(bench: Bench) -> Call:
    job = JobSpec(id="0-new", prompt="x", deadline_ms=2**45)
    one = Submission.of(job, encode_job(job), Priority.NORMAL, tenant="t")
    return calls.submit(bench.partition, [one], limits=QueueLimits())


@prepared()
def cancel_of_a_tenant(bench: Bench) -> Call:
    return calls.cancel(bench.partition, bench.client.submit("x", tenant="t").id)


@prepared()
def end_late_of_a_tenant(bench: Bench) -> Call:
    return late(bench, bench.client.submit("x", tenant="t", deadline_s=100))


@prepared()
def delete_of_a_tenant(bench: Bench) -> Call:
    return calls.delete(bench.partition, bench.client.submit("x", tenant="t").id)


@prepared()
def fetch_of_a_tenant(bench: Bench) -> Call:
    """Jobs of two tenants and one of none; the deadline of one has passed."""
    for tenant in ("a", "b", ""):
        bench.client.submit("x", tenant=tenant)
    late = bench.client.submit("x", tenant="a", deadline_s=1000)
    bench.redis.hset(bench.partition.state(late.id), "deadline_ms", 1)
    return calls.fetch(bench.partition, "w", 5, ageing_ms=1)


@prepared()
def append_of_a_tenant(bench: Bench) -> Call:
    for tenant in ("a", "b"):
        bench.client.submit("x", tenant=tenant)
    going, ended = (to_append(bench.start("w"), token(0), token(1)) for _ in range(2))
    ended.end = FinishedEvent(index=2, reason="eos", prompt_tokens=1)
    return calls.append(bench.partition, [going, ended], ttl_s=60)


@prepared("dead_letter_of_a_tenant")
def give_up_of_a_tenant(bench: Bench) -> Call:
    bench.client.submit("x", tenant="t")
    lease = bench.start("w")
    failed = FailedEvent(index=0, code="crash_loop", message="as the test wishes")
    return dead_letter(bench, lease.entry, lease.job_id, failed)


@prepared()
def retry_of_a_tenant(bench: Bench) -> Call:
    bench.call(give_up_of_a_tenant(bench))
    return retried(bench, tenant="t")


def retried(bench: Bench, tenant: str = "") -> Call:
    """The only dead letter there is."""
    letters: Any = bench.redis.xrange(bench.partition.dead)
    ((handle, fields),) = letters
    job = JobSpec(id="0-again", prompt="x")
    stream = fields[b"stream"].decode()
    letter = (bench.partition, handle.decode(), stream, job, encode_job(job))
    return calls.retry(*letter, retry_of="0-old", tenant=tenant)


@prepared()
def sweep_of_a_tenant(bench: Bench) -> Call:
    """Its deadline has passed while it waits."""
    bench.client.submit("x", tenant="t")
    late = bench.client.submit("x", tenant="t", deadline_s=1000)
    bench.redis.zadd(bench.partition.tenant_deadlines, {late.id: 1})
    return calls.sweep(bench.partition, [], again_s=60)


@prepared()
def set_tenant(bench: Bench) -> Call:
    bench.client.submit("x", tenant="t")
    return calls.set_tenant(bench.partition, "t", TenantLimits(weight=2, max_running_jobs=1))


@prepared()
def rename_tenant(bench: Bench) -> Call:
    bench.call(set_tenant(bench))
    bench.client.submit("x", tenant="t")
    bench.start("w")
    return calls.rename_tenant(bench.partition, "t", "u", count=9)


@prepared()
def tenant_status(bench: Bench) -> Call:
    bench.client.submit("x", tenant="t")
    return calls.tenant_status(bench.partition, top=5, names=["u"])
