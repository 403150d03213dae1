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


@pytest.mark.parametrize("older", [True, False])
def test_a_worker_understands_hashes_and_the_ids_of_older_clients(
    client: Client,
    raw: redis.Redis,
    partition: Partition,
    start_worker: Callable[..., object],
    older: bool,
) -> None:
    # given: no flag is set, so that only the message can do it
    start_worker(**SLOW)
    job = client.submit("x", **ENDLESS)
    wait_until(lambda: running(job))
    wait_until(lambda: raw.pubsub_numsub(partition.control)[0][1] == 1)
    # when
    raw.publish(partition.control, "somebody else's")
    raw.publish(partition.control, job.id if older else control_message(job.id))
    # then
    with pytest.raises(JobCancelled):
        job.result(90)
