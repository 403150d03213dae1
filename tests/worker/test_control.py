"""A cancel on its way to the worker: its message names no id to who listens along."""

from collections.abc import Callable

import pytest
import redis

from rose.errors import JobCancelled
from rose.protocol import Partition
from rose.protocol.calls import control_message
from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.echo import SLOW, running

#: The flag in the state would stop it too, but only once it has a token.
ENDLESS = {"max_new_tokens": 100_000}


def test_the_message_of_a_cancel_is_no_id(
    client: Client, raw: redis.Redis, partition: Partition, start_worker: Callable[..., object]
) -> None:
    # given: another producer listens
    start_worker(**SLOW)
    job = client.submit("x", **ENDLESS)
    wait_until(lambda: running(job))
    with raw.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe(partition.control)
        listener.get_message(timeout=90)
        # when
        assert job.cancel()
        # then
        heard = listener.get_message(timeout=90)
    with pytest.raises(JobCancelled):
        job.result(90)
    assert heard is not None
    assert job.id.encode() not in heard["data"]
    assert len(heard["data"]) == 64


def test_a_message_without_a_flag_stops_nothing(
    client: Client, raw: redis.Redis, partition: Partition, start_worker: Callable[..., object]
) -> None:
    # given
    start_worker(**SLOW)
    job, other = client.submit("x", **ENDLESS), client.submit("y", **ENDLESS)
    wait_until(lambda: running(job) and running(other))
    wait_until(lambda: raw.pubsub_numsub(partition.control)[0][1] == 1)
    # when
    for message in ("somebody else's", job.id, control_message(job.id)):
        assert raw.publish(partition.control, message) == 1
    # then
    assert other.cancel()
    with pytest.raises(JobCancelled):
        other.result(90)
    told = job.status().tokens
    wait_until(lambda: running(job, tokens=told + 20))


def test_a_message_ends_a_job_whose_flag_is_set_and_that_has_no_token_yet(
    client: Client, raw: redis.Redis, partition: Partition, start_worker: Callable[..., object]
) -> None:
    # given: a step takes longer than this test
    start_worker(min_step_s=300, stall_timeout_s=1000, lease_s=300)
    job = client.submit("x", **ENDLESS)
    wait_until(lambda: job.status().status == "running")
    wait_until(lambda: raw.pubsub_numsub(partition.control)[0][1] == 1)
    # when
    raw.hset(partition.state(job.id), "cancel", "1")
    raw.publish(partition.control, control_message(job.id))
    # then
    with pytest.raises(JobCancelled):
        job.result(90)
