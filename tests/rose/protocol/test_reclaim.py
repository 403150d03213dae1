"""Leases that lapse: who looks for them, what becomes of the jobs, and clocks that are set."""

import time
from collections import Counter

import pytest

from rose.protocol import GROUP, MAX_JOB_BYTES, RELEASED, Priority, calls, decode_job
from rose.protocol.calls import MAX_FETCH_BYTES
from rose_producer import Request
from tests.conftest import needs_redis_server
from tests.support.bench import Bench
from tests.support.time_limit import TimeLimit

LEASE_MS = 60_000
HOUR_MS = 3_600_000


def reclaim(bench: Bench, *, interval_ms: int = 0, patience_ms: int = LEASE_MS) -> int:
    count: int = bench.call(
        calls.reclaim(
            bench.partition, lease_ms=LEASE_MS, interval_ms=interval_ms, patience_ms=patience_ms
        )
    )
    return count


def let_lapse(bench: Bench, worker: str, by_ms: int = 1) -> None:
    """The worker has been silent for longer than its lease."""
    for stream in bench.partition.all_jobs:
        for entry in bench.redis.xpending_range(stream, GROUP, "-", "+", 100_000, worker):
            bench.redis.xclaim(
                stream, GROUP, worker, 0, [entry["message_id"]], idle=LEASE_MS + by_ms, justid=True
            )


def owners(bench: Bench) -> dict[str, int]:
    """How many entries each consumer holds in all streams."""
    held: Counter[str] = Counter()
    for stream in bench.partition.all_jobs:
        for consumer in bench.redis.xinfo_consumers(stream, GROUP):
            held[consumer["name"].decode()] += consumer["pending"]
    return dict(+held)


def looked(bench: Bench, ago_ms: int) -> None:
    """The last look was so long ago, as the clock of now says."""
    seconds, microseconds = bench.redis.time()
    at = seconds * 1000 + microseconds // 1000 - ago_ms
    bench.redis.set(bench.partition.reclaim, f"{at} 0")


def test_orphans_go_before_newer_jobs_of_any_priority(bench: Bench) -> None:
    # given: a job whose worker is dead, one whose worker lives, and newer ones
    orphan = bench.client.submit("x", priority="low")
    bench.fetch("dead")
    alive = bench.client.submit("x")
    bench.fetch("alive")
    newer = bench.client.submit_many([Request("x", priority="high"), Request("x")])
    let_lapse(bench, "dead")
    # when
    assert reclaim(bench) == 1
    # then
    assert owners(bench) == {RELEASED: 1, "alive": 1}
    fetched = [job.job_id for job in bench.fetch("w", 5)]
    assert fetched == [orphan.id, *(job.id for job in newer)]
    assert alive.id not in fetched
    assert owners(bench) == {"alive": 1, "w": 3}
    assert reclaim(bench) == 0


def test_one_look_finds_the_orphan_behind_ten_thousand_pending_entries(bench: Bench) -> None:
    # given: the orphan is the last one of all
    bench.client.submit_many(["x"] * 10_000)
    while bench.fetch("full", 1000):
        pass
    orphan = bench.client.submit("x")
    bench.fetch("dead")
    let_lapse(bench, "dead")
    newer = bench.client.submit("x")
    # when
    assert reclaim(bench) == 1
    # then
    assert [job.job_id for job in bench.fetch("w")] == [orphan.id]
    assert [job.job_id for job in bench.fetch("w")] == [newer.id]


def test_one_worker_an_interval_looks_for_all(bench: Bench) -> None:
    # given
    bench.client.submit_many(["x", "y"])
    assert reclaim(bench, interval_ms=HOUR_MS) == 0
    bench.fetch("dead", 2)
    let_lapse(bench, "dead")
    # when / then
    assert reclaim(bench, interval_ms=HOUR_MS) == 0
    assert reclaim(bench, interval_ms=0) == 2


@needs_redis_server  # the stand-in's XCLAIM of an entry to its owner keeps the time
def test_where_redis_clock_was_set_back_all_leases_begin_anew(bench: Bench) -> None:
    # given: the last look was in what is the future now, as the delivery of entries may have been
    bench.client.submit_many(["x", "y"])
    bench.fetch("w", 2)
    let_lapse(bench, "w")
    looked(bench, -HOUR_MS)
    # when / then
    assert reclaim(bench) == 0
    stream = bench.partition.jobs(Priority.NORMAL)
    (first, _) = bench.redis.xpending_range(stream, GROUP, "-", "+", 2, "w")
    assert first["time_since_delivered"] < LEASE_MS
    # and from now on they lapse as ever
    assert reclaim(bench) == 0
    let_lapse(bench, "w")
    assert reclaim(bench) == 2


def test_after_a_time_without_a_look_living_workers_may_renew_first(bench: Bench) -> None:
    """Redis stood still for an hour, or its clock was set forward by one."""
    # given
    bench.client.submit_many(["x", "y"])
    living, _ = bench.start("living"), bench.start("dead")
    let_lapse(bench, "living", HOUR_MS)
    let_lapse(bench, "dead", HOUR_MS)
    looked(bench, HOUR_MS)
    # when / then: nobody loses anything before the living one could renew
    assert reclaim(bench, patience_ms=500) == 0
    bench.call(calls.renew(living.entry.stream, "living", [living.entry.id]))
    limit = TimeLimit(60)
    while reclaim(bench, patience_ms=500) == 0:
        assert not limit.passed
        time.sleep(0.05)
    assert owners(bench) == {RELEASED: 1, "living": 1}


@pytest.mark.parametrize("left_by", ["nobody", "the dead"])
def test_a_fetch_carries_bounded_bytes(bench: Bench, left_by: str) -> None:
    # given: ten large jobs, and small ones
    jobs = bench.client.submit_many([*["x" * 9000] * 10, *["x"] * 100])
    if left_by == "the dead":
        while bench.fetch("dead", 200):
            pass
        let_lapse(bench, "dead")
        assert reclaim(bench) == 110
    # when
    call = calls.fetch(bench.partition, "w", 105, ageing_ms=60_000, max_bytes=40_000)
    replies = [bench.call(call) for _ in range(4)]
    # then
    fetched = [[raw for _, flat in streams for raw in flat[1::2]] for streams, *_ in replies]
    assert [len(portion) for portion in fetched] == [5, 5, 100, 0]
    assert [decode_job(raw).id for portion in fetched for raw in portion] == [j.id for j in jobs]
    assert [reply[3] for reply in replies] == [1, 1, 0, 0]
    assert MAX_FETCH_BYTES == 4 * MAX_JOB_BYTES
