"""No script is ever half carried out: Redis refuses it before its first write, or not at all. And
each may be repeated, since the reply to the first call may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

import rose.protocol.scripts
from rose.protocol import GROUP, JobEntry, JobSpec, Priority, calls, encode_job
from rose.protocol.calls import Call, NotTaken, QueueLimits, Submission, Take
from rose.protocol.tenants import TenantLimits
from rose_cli.demo.broker import EmbeddedBroker
from rose_producer import FailedEvent, FinishedEvent
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, dead_letter, to_append, token
from tests.support.troubles import out_of_memory, read_only

pytestmark = needs_redis_server


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(fake=False) as server:
        yield server


@pytest.fixture
def any_broker(server: EmbeddedBroker) -> EmbeddedBroker:
    return server


def submit(bench: Bench) -> Call:
    job = JobSpec(id="0-new", prompt="x")
    one = Submission.of(job, encode_job(job), Priority.NORMAL, idempotency_key="k")
    return calls.submit(bench.partition, [one], limits=QueueLimits())


def cancel(bench: Bench) -> Call:
    job = bench.client.submit("x")
    return calls.cancel(bench.partition, job.id)


def delete(bench: Bench) -> Call:
    """A job that waits, with all that a job can have."""
    job = bench.client.submit("x", idempotency_key="k", record=b"r", owner="o")
    return calls.delete(bench.partition, job.id)


def fetch(bench: Bench) -> Call:
    bench.client.submit("x")
    bench.client.submit("y", priority="low")
    return calls.fetch(bench.partition, "w", 5, ageing_ms=1)


def take(bench: Bench) -> Call:
    bench.client.submit_many(["x", "y"])
    takes = [Take(*job) for job in bench.fetch("w", 2)]
    return calls.take(bench.partition, takes, "w", ttl_s=60)


def append(bench: Bench) -> Call:
    """Tokens of one job, and tokens and the end of another."""
    bench.client.submit_many(["x", "y"])
    going, ended = (to_append(bench.start("w"), token(0), token(1)) for _ in range(2))
    ended.end = FinishedEvent(index=2, reason="eos", prompt_tokens=1)
    return calls.append(bench.partition, [going, ended], ttl_s=60)


def renew(bench: Bench) -> Call:
    bench.client.submit_many(["x", "y"])
    leases = [bench.start("w"), bench.start("w")]
    return calls.renew(leases[0].entry.stream, "w", [lease.entry.id for lease in leases])


def release(bench: Bench) -> Call:
    bench.client.submit_many(["x", "y"])
    leases = [bench.start("w"), bench.start("w")]
    held = [JobEntry(lease.entry, lease.job_id) for lease in leases]
    return calls.release(bench.partition, leases[0].entry.stream, "w", held)


def hand_on(bench: Bench) -> Call:
    return calls.hand_on(bench.partition, "w", leaves=False)


def reclaim(bench: Bench) -> Call:
    bench.client.submit_many(["x", "y"])
    bench.fetch("w", 2)
    return calls.reclaim(bench.partition, lease_ms=0, interval_ms=0, patience_ms=1000)


def give_up(bench: Bench) -> Call:
    _, lease = bench.begin()
    failed = FailedEvent(index=0, code="crash_loop", message="as the test wishes")
    return dead_letter(bench, lease.entry, lease.job_id, failed)


def retry(bench: Bench) -> Call:
    bench.call(give_up(bench))
    ((letter, fields),) = bench.redis.xrange(bench.partition.dead)
    job = JobSpec(id="0-again", prompt="x")
    return calls.retry(
        bench.partition,
        letter.decode(),
        fields[b"stream"].decode(),
        job,
        encode_job(job),
        retry_of="0-old",
    )


def forget(bench: Bench) -> Call:
    bench.client.submit("x")
    bench.finish(bench.start("gone"), 0)
    return calls.forget(bench.partition, idle_ms=0)


def leave(bench: Bench) -> Call:
    """With an entry that the worker does not know of."""
    bench.client.submit("x")
    bench.fetch("w")
    return calls.leave(bench.partition, "w")


def sweep(bench: Bench) -> Call:
    """An entry that nobody owns."""
    bench.client.submit("x")
    (job,) = bench.fetch("w")
    bench.redis.xgroup_delconsumer(job.entry.stream, GROUP, "w")
    return calls.sweep(bench.partition, [], again_s=60)


def queue_status(bench: Bench) -> Call:
    return calls.queue_status(bench.partition)


def elect(bench: Bench) -> Call:
    return calls.elect(bench.partition, "w", lease_ms=60_000)


def oldest_waiting(bench: Bench) -> Call:
    bench.client.submit("x")
    return calls.oldest_waiting(bench.partition)


def create_groups(bench: Bench) -> Call:
    bench.redis.xgroup_destroy(bench.partition.jobs(Priority.LOW), GROUP)
    return calls.create_groups(bench.partition)


def announce(bench: Bench) -> Call:
    facts = {"name": "m", "fingerprint": "f", "context_tokens": 9}
    return calls.announce(bench.partition, "w", facts, mode="join", slots=1)


def room(bench: Bench) -> Call:
    return calls.room(bench.partition)


def submit_of_a_tenant(bench: Bench) -> Call:
    job = JobSpec(id="0-new", prompt="x", deadline_ms=2**45)
    one = Submission.of(job, encode_job(job), Priority.NORMAL, tenant="t")
    return calls.submit(bench.partition, [one], limits=QueueLimits())


def cancel_of_a_tenant(bench: Bench) -> Call:
    return calls.cancel(bench.partition, bench.client.submit("x", tenant="t").id)


def delete_of_a_tenant(bench: Bench) -> Call:
    return calls.delete(bench.partition, bench.client.submit("x", tenant="t").id)


def fetch_of_a_tenant(bench: Bench) -> Call:
    """Jobs of two tenants and one of none; the deadline of one has passed."""
    for tenant in ("a", "b", ""):
        bench.client.submit("x", tenant=tenant)
    late = bench.client.submit("x", tenant="a", deadline_s=1000)
    bench.redis.hset(bench.partition.state(late.id), "deadline_ms", 1)
    return calls.fetch(bench.partition, "w", 5, ageing_ms=1)


def append_of_a_tenant(bench: Bench) -> Call:
    for tenant in ("a", "b"):
        bench.client.submit("x", tenant=tenant)
    going, ended = (to_append(bench.start("w"), token(0), token(1)) for _ in range(2))
    ended.end = FinishedEvent(index=2, reason="eos", prompt_tokens=1)
    return calls.append(bench.partition, [going, ended], ttl_s=60)


def give_up_of_a_tenant(bench: Bench) -> Call:
    bench.client.submit("x", tenant="t")
    lease = bench.start("w")
    failed = FailedEvent(index=0, code="crash_loop", message="as the test wishes")
    return dead_letter(bench, lease.entry, lease.job_id, failed)


def retry_of_a_tenant(bench: Bench) -> Call:
    bench.call(give_up_of_a_tenant(bench))
    ((letter, _),) = bench.redis.xrange(bench.partition.dead)
    job, stream = JobSpec(id="0-again", prompt="x"), bench.partition.jobs(Priority.NORMAL)
    return calls.retry(
        *(bench.partition, letter.decode(), stream, job, encode_job(job)),
        retry_of="0-old",
        tenant="t",
    )


def sweep_of_a_tenant(bench: Bench) -> Call:
    """Its deadline has passed while it waits."""
    bench.client.submit("x", tenant="t")
    late = bench.client.submit("x", tenant="t", deadline_s=1000)
    bench.redis.zadd(bench.partition.tenant_deadlines, {late.id: 1})
    return calls.sweep(bench.partition, [], again_s=60)


def set_tenant(bench: Bench) -> Call:
    bench.client.submit("x", tenant="t")
    return calls.set_tenant(bench.partition, "t", TenantLimits(weight=2, max_running_jobs=1))


def rename_tenant(bench: Bench) -> Call:
    bench.call(set_tenant(bench))
    bench.client.submit("x", tenant="t")
    bench.start("w")
    return calls.rename_tenant(bench.partition, "t", "u", count=9)


def tenant_status(bench: Bench) -> Call:
    bench.client.submit("x", tenant="t")
    return calls.tenant_status(bench.partition, top=5, names=["u"])


SCRIPTS = (
    announce,
    append,
    cancel,
    create_groups,
    delete,
    elect,
    fetch,
    forget,
    leave,
    oldest_waiting,
    queue_status,
)
SCRIPTS += (hand_on, reclaim, release, renew, retry, room, submit, sweep, take)
SCRIPTS += (submit_of_a_tenant, cancel_of_a_tenant, delete_of_a_tenant, fetch_of_a_tenant)
SCRIPTS += (append_of_a_tenant, retry_of_a_tenant, sweep_of_a_tenant, set_tenant, tenant_status)
SCRIPTS += (rename_tenant,)
PREPARED = {prepare.__name__: prepare for prepare in SCRIPTS} | {
    "dead_letter": give_up,
    "dead_letter_of_a_tenant": give_up_of_a_tenant,
}
ONLY_READ = {"oldest_waiting", "queue_status", "tenant_status"}
#: Redis lets everything run at `maxmemory` but what asks for more and ends nothing.
NEEDS_MEMORY = {"room", "submit", "submit_of_a_tenant"}

#: Whose caller goes by the reply, so that a repeat must answer what the first call did.
SAY_THE_SAME = {"elect", "oldest_waiting", "renew", "retry", "retry_of_a_tenant", "take"}

TROUBLES = {
    "OOM": (out_of_memory, PREPARED.keys() - NEEDS_MEMORY),
    "READONLY": (read_only, ONLY_READ),
}


def script_of(name: str) -> str:
    return name.removesuffix("_of_a_tenant")


def refused(bench: Bench, call: Call) -> None:
    """By a client that asks once: ours asks a server that is read-only again and again."""
    with pytest.raises(ResponseError):
        bench.redis.eval(call.script.source, len(call.keys), *call.keys, *call.args)


def everything(bench: Bench) -> dict[bytes, bytes]:
    """All keys of the queue with all they hold: entries, pending lists and times included."""
    keys = bench.redis.scan_iter(f"rose:{{{bench.partition.queue}:0}}:*")
    return {key: bench.redis.dump(key) for key in keys}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("name", PREPARED)
def test_a_refused_script_has_changed_and_said_nothing(
    bench: Bench, name: str, trouble: str
) -> None:
    # given
    call = PREPARED[name](bench)
    assert call.script.name == script_of(name)
    refuse, spared = TROUBLES[trouble]
    listener = bench.redis.pubsub(ignore_subscribe_messages=True)
    listener.psubscribe(f"rose:{{{bench.partition.queue}:0}}:*")
    listener.get_message(timeout=90)
    before = everything(bench)
    # when
    with refuse(bench.redis):
        if name in spared:
            bench.call(call)
            return
        refused(bench, call)
        # then
        assert everything(bench) == before
        assert listener.get_message(timeout=0.05) is None
    # and it can be repeated
    bench.call(call)
    assert name == "room" or everything(bench) != before
    listener.close()


def contents(bench: Bench) -> dict[bytes, object]:
    """As `everything`, without the times at which entries were handed to somebody or looked at."""
    found: dict[bytes, object] = {}
    keys = bench.redis.scan_iter(f"rose:{{{bench.partition.queue}:0}}:*")
    for key in set(keys) - {bench.partition.reclaim.encode()}:
        if bench.redis.type(key) != b"stream":
            found[key] = bench.redis.dump(key)
            continue
        groups: list[dict[str, Any]] = bench.redis.xinfo_groups(key)
        owners = [
            [(entry["message_id"], entry["consumer"]) for entry in held]
            for group in groups
            for held in [bench.redis.xpending_range(key, group["name"], "-", "+", 100)]
        ]
        found[key] = (bench.redis.xrange(key), [g["last-delivered-id"] for g in groups], owners)
    return found


@pytest.mark.parametrize("name", PREPARED)
def test_a_repeat_changes_and_says_nothing(bench: Bench, name: str) -> None:
    # given
    call = PREPARED[name](bench)
    reply = bench.call(call)
    after = contents(bench)
    listener = bench.redis.pubsub(ignore_subscribe_messages=True)
    listener.psubscribe(f"rose:{{{bench.partition.queue}:0}}:*")
    listener.get_message(timeout=90)
    # when
    repeated = bench.call(call)
    # then
    assert contents(bench) == after
    assert listener.get_message(timeout=0.05) is None
    listener.close()
    if name == "take":  # in terms of what it grants: it tells Redis' time, too
        reply, repeated = ([calls.taken(item) for item in each] for each in (reply, repeated))
    if name in SAY_THE_SAME:
        assert repeated == reply


def test_jobs_begin_go_on_and_end_out_of_memory(bench: Bench) -> None:
    # given: what fills Redis is waiting jobs
    ended, waiting, moved = bench.client.submit_many(["x", "y", "z"])
    with out_of_memory(bench.redis):
        # when
        lease = bench.start("w")
        assert bench.append(lease, token(0)) == ["OK"]
        assert bench.finish(lease, 1) == "OK"
        assert waiting.cancel()
        assert bench.take("w", *bench.fetch("w")) is NotTaken.NOTHING_TO_DO
        released = bench.start("w")
        held = JobEntry(released.entry, released.job_id)
        bench.call(calls.release(bench.partition, held.entry.stream, "w", [held]))
        # then
        assert [ended.status().status, waiting.status().status] == ["finished", "cancelled"]
        assert moved.status().status == "queued"
        assert bench.lengths() == [0, 1, 0]


@pytest.mark.parametrize(
    ("name", "right"), [("take", "hmget"), ("take", "xrevrange"), ("append", "hmget")]
)
def test_a_missing_right_is_an_error_and_no_verdict_on_the_job(
    server: EmbeddedBroker, bench: Bench, name: str, right: str
) -> None:
    # given
    call = PREPARED[name](bench)
    bench.redis.execute_command(
        *("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", f"-{right}")
    )
    # when / then
    with (
        redis.Redis(port=server.port, username="limited", password="-", protocol=2) as limited,
        pytest.raises(ResponseError, match=r"can't run this command|ACL failure in script"),
    ):
        limited.eval(call.script.source, len(call.keys), *call.keys, *call.args)


@pytest.fixture
def mute(server: EmbeddedBroker, bench: Bench) -> Iterator[redis.Redis]:
    """A user who may do anything but publish."""
    bench.redis.execute_command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "-publish")
    with redis.Redis(port=server.port, username="mute", password="-", protocol=2) as mute:
        yield mute


def refused_to_publish(mute: redis.Redis, call: Call) -> Any:
    """What a repeat of the call replies."""
    words = (call.script.source, len(call.keys), *call.keys, *call.args)
    with pytest.raises(ResponseError, match=r"can't run this command|ACL failure in script"):
        mute.eval(*words)
    return mute.eval(*words)


@pytest.mark.parametrize("tenant", ["", "t"])
def test_who_may_not_publish_has_done_all_the_rest(
    bench: Bench, mute: redis.Redis, tenant: str
) -> None:
    # given: three jobs that run and one that waits
    client, place = bench.client, bench.partition
    jobs = [client.submit("x", tenant=tenant) for _ in range(4)]
    going, at_once, given_up = (bench.start("w") for _ in range(3))
    one = to_append(at_once, token(0))
    one.end = FinishedEvent(index=1, reason="eos", prompt_tokens=1)
    failed = FailedEvent(index=0, code="crash_loop", message="as the test wishes")
    items = [to_append(going, token(0)), one]
    # when
    stored = refused_to_publish(mute, calls.append(place, items, ttl_s=60))
    refused_to_publish(mute, dead_letter(bench, given_up.entry, given_up.job_id, failed))
    refused_to_publish(mute, calls.cancel(place, jobs[3].id))
    # then: the repeat found all of it
    assert calls.outcomes(stored, 2) == ["DUP", "DUP"]
    assert [job.status().status for job in jobs] == ["running", "finished", "failed", "cancelled"]
    assert [job.status().tokens for job in jobs] == [1, 1, 0, 0]
    assert [event.index for event in jobs[1].stream()] == [0, 1]
    # and nothing but what has not ended counts
    assert bench.finish(going, 1) == "OK"
    load = {name: int(value) for name, value in bench.redis.hgetall(place.load).items()}
    assert (load[b"tokens"], load[b"bytes"], load[b"generated"]) == (0, 0, 2)
    tenants = client.tenants()
    assert (tenants.count, tenants.waiting, tenants.running) == (0, 0, 0)


def test_every_script_is_here() -> None:
    folder = Path(rose.protocol.scripts.__file__).parent
    scripts = {path.stem for path in folder.glob("*.lua") if not path.stem.startswith("common")}
    assert scripts == {script_of(name) for name in PREPARED}
