"""How much a queue holds: its own limit, a caller's, and what does not count."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from rose.errors import BrokerUnavailable, QueueFull
from rose.protocol import Partition, Priority
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, Request
from tests.conftest import needs_redis_server
from tests.support.bench import Bench

LIMITS = ("max_queued_jobs", "max_queued_tokens", "max_queued_bytes")
#: Room for three jobs of one token each, whose prompts have 100 tokens.
THREE = {"max_queued_jobs": 3, "max_queued_tokens": 303, "max_queued_bytes": 3 * 1300}
UNITS = dict(zip(LIMITS, ("jobs", "tokens", "bytes"), strict=True))
JOB = Request([7] * 100, sampling={"max_new_tokens": 1})

Limited = Callable[..., Client]


@pytest.fixture
def limited(any_broker: EmbeddedBroker, queue: str) -> Iterator[Limited]:
    """Makes a client with limits."""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(
            Client(redis_url=any_broker.url, queue=queue, **limits)
        )


def accepted(client: Client, jobs: int) -> int:
    """How many of so many fit."""
    try:
        return len(client.submit_many([JOB] * jobs))
    except QueueFull as full:
        return len(full.accepted)


@pytest.mark.parametrize("name", LIMITS)
def test_cancelled_jobs_leave_their_place(bench: Bench, limited: Limited, name: str) -> None:
    # given: a full queue without a worker
    client = limited(**{name: THREE[name]})
    waiting = client.submit_many([JOB] * 3)
    with pytest.raises(QueueFull) as full:
        client.submit_many([JOB])
    assert (full.value.unit, full.value.limit) == (UNITS[name], THREE[name])
    # when
    assert all(job.cancel() for job in waiting)
    # then
    assert accepted(client, 5) == 3


@pytest.mark.parametrize("name", ["max_queued_jobs", "max_queued_bytes"])
def test_who_submits_and_cancels_in_turn_does_not_fill_redis(
    bench: Bench, limited: Limited, name: str
) -> None:
    # given
    client = limited(**{name: THREE[name]})
    # when
    for _ in range(3):
        for job in [client.job(i) for i in ids_of(client, 3)]:
            job.cancel()
    # then: their entries are there until a worker comes
    assert sum(bench.lengths()) == 6
    assert accepted(client, 1) == 0


def ids_of(client: Client, jobs: int) -> list[str]:
    try:
        return [job.id for job in client.submit_many([JOB] * jobs)]
    except QueueFull as full:
        return list(full.accepted)


def test_all_counts_are_zero_when_all_jobs_have_ended(bench: Bench) -> None:
    # given: one is cancelled while it waits, one ends, one dies with a dead letter
    cancelled, *_ = bench.client.submit_many([JOB] * 2)
    cancelled.cancel()
    cancelled.cancel()
    counts = bench.redis.hgetall(bench.partition.load)
    assert counts[b"cancelled"] == b"1"
    assert int(counts[b"bytes"]) == int(counts[b"cancelled_bytes"]) > 1024
    # when
    (entry,) = bench.fetch("w")
    bench.take("w", entry)
    bench.take("w", entry)
    bench.finish(bench.start("w"), 0)
    # then
    counts = bench.redis.hgetall(bench.partition.load)
    assert set(counts.values()) == {b"0"}


def test_counts_that_are_wrong_are_right_again_once_nothing_waits(bench: Bench) -> None:
    # given: what a lost or older worker has not given back
    wrong = {"tokens": 900, "bytes": 10**9, "cancelled": 7, "cancelled_bytes": -5}
    bench.redis.hset(bench.partition.load, mapping=wrong)
    # when
    bench.client.submit("x", max_new_tokens=1)
    # then
    counts = bench.redis.hgetall(bench.partition.load)
    assert counts.pop(b"tokens") == b"2"
    assert 1024 < int(counts.pop(b"bytes")) < 2048
    assert set(counts.values()) == {b"0"}


@pytest.mark.parametrize("name", LIMITS)
def test_the_queue_holds_its_limit_and_a_caller_may_be_stricter(
    bench: Bench, limited: Limited, name: str
) -> None:
    # given: what a worker announces
    announced = {"max_jobs": "", "max_tokens": "", "max_bytes": ""}
    announced[name.replace("queued_", "")] = str(THREE[name])
    bench.redis.hset(bench.partition.model, mapping=announced)
    # when / then: a caller that asks for more, or for less
    assert accepted(limited(**{name: THREE[name] * 9}), 5) == 3
    assert accepted(limited(max_queued_jobs=2), 1) == 0


def test_what_a_worker_announces_as_empty_is_no_limit(bench: Bench) -> None:
    # given
    bench.redis.hset(bench.partition.model, "max_jobs", "0")
    with pytest.raises(QueueFull):
        bench.client.submit("x")
    # when
    bench.redis.hset(bench.partition.model, "max_jobs", "")
    # then
    assert bench.client.submit("x").status().status == "queued"


@needs_redis_server
def test_a_stream_that_takes_no_more_entries_is_named(broker: EmbeddedBroker, queue: str) -> None:
    # given: an entry with the last possible id
    with Client(redis_url=broker.url, queue=queue) as client, redis.Redis(port=broker.port) as raw:
        stream = Partition(queue).jobs(Priority.HIGH)
        raw.xadd(stream, {"job": b"x"}, id=f"{2**64 - 1}-{2**64 - 1}")
        # when
        with pytest.raises(BrokerUnavailable, match="jobs:high takes no more") as blocked:
            client.submit_many([Request("x", priority=p) for p in ("normal", "high", "low")])
        # then: the others are enqueued and counted
        assert len(blocked.value.accepted) == 2
        assert blocked.value.in_doubt == ()
        assert client.queue_status().queued_tokens > 500
