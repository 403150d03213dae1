"""Jobs of dead and hung workers: they go before newer ones, and the hung ones take none."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from rose.protocol import GROUP, Partition, Priority
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, Request
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import SLOW, StartWorker, echoed, running
from tests.support.hanging import HANGS_STEP


@contextmanager
def full_workers(broker: EmbeddedBroker, partition: Partition, entries: int) -> Iterator[None]:
    """Others that hold so many entries, and renew them as workers do."""
    stream, stop = partition.jobs(Priority.NORMAL), threading.Event()
    with redis.Redis(port=broker.port, protocol=2) as others:
        others.xgroup_create(stream, GROUP, "0", mkstream=True)
        pipeline = others.pipeline(transaction=False)
        for n in range(entries):
            pipeline.xadd(stream, {"job": b"held"}, id=f"{n + 1}-0")
        ids = pipeline.execute()
        owners = [f"full-{n}" for n in range(100)]
        share = entries // len(owners)
        for owner in owners:
            others.xreadgroup(GROUP, owner, {stream: ">"}, count=share)

        def renew() -> None:
            while not stop.wait(1):
                for n, owner in enumerate(owners):
                    mine = ids[n * share : (n + 1) * share]
                    others.xclaim(stream, GROUP, owner, 0, mine, justid=True)

        thread = threading.Thread(target=renew)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@needs_redis_server
def test_an_orphan_begins_before_the_jobs_that_wait_though_ten_thousand_are_held(
    broker: EmbeddedBroker, client: Client, partition: Partition, start_worker: StartWorker
) -> None:
    # given: a worker that dies, one with a single free slot, and many newer jobs
    with full_workers(broker, partition, 10_000):
        victim = start_worker(max_batch_size=1, lease_s=5, min_step_s=0.5)
        orphan = client.submit("ab", max_new_tokens=100)
        wait_until(lambda: running(orphan, tokens=2))
        start_worker(max_batch_size=2, lease_s=5, **SLOW)
        long = client.submit("cd", max_new_tokens=100_000)
        wait_until(lambda: running(long))
        newer = client.submit_many([Request("x", sampling={"max_new_tokens": 20})] * 200)
        # when
        victim.kill()
        # then: it moves while most of them still wait
        wait_until(lambda: orphan.status().epoch >= 2)
        assert newer[-100].status().status == "queued"
        assert orphan.result(90).token_ids == echoed(b"ab", 100)


def test_a_worker_whose_step_hangs_takes_nothing_more_and_loses_what_it_has(
    client: Client, start_worker: StartWorker
) -> None:
    # given: a step that never ends, in a worker with free slots
    hung = start_worker(program=["tests.support.hanging"], lease_s=1, stall_timeout_s=3)
    stuck = client.submit([HANGS_STEP, 8], max_new_tokens=5)
    wait_until(lambda: stuck.status().status == "running")
    wait_until(lambda: "no new jobs until it ends" in hung.log)
    # when
    later = client.submit_many([f"{n:02}" for n in range(5)])
    # then: it leaves the new ones to others, and keeps its own until the stall timeout
    wait_until(lambda: hung.http("/healthz") is None)
    assert {job.status().status for job in later} == {"queued"}
    assert (stuck.status().epoch, stuck.status().worker) == (1, hung.name)
    # and its leases lapse: another worker, which does not hang, takes over
    other = start_worker(lease_s=1)
    assert stuck.result(90).token_ids == (HANGS_STEP, 8, HANGS_STEP, 8, HANGS_STEP)
    assert stuck.status().epoch >= 2
    assert stuck.status().worker == other.name
    for n, job in enumerate(later):
        assert job.result(90).token_ids == echoed(f"{n:02}".encode(), 256)
    assert hung.running
