"""Many jobs in few calls: nothing that one job alone would have got is different."""

from collections.abc import Iterator
from unittest import mock

import pytest
import redis
from redis.exceptions import OutOfMemoryError

from rose.errors import BrokerUnavailable, PromptTooLong, QueueFull
from rose.protocol import Partition, decode_job, partition_of
from rose.transport import AsyncRedisClient, broker_errors
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, Request
from rose_producer.request import batches, prepare_all
from rose_producer.settings import ProducerSettings


@pytest.fixture
def wide(any_broker: EmbeddedBroker, queue: str) -> Iterator[Client]:
    """A client of three partitions."""
    with Client(redis_url=any_broker.url, queue=queue, partitions=3) as client:
        yield client


@pytest.fixture
def raw(any_broker: EmbeddedBroker) -> Iterator[redis.Redis]:
    with redis.Redis(port=any_broker.port, protocol=2) as client:
        yield client


def test_the_jobs_come_in_order_on_every_partition_and_priority(
    wide: Client, raw: redis.Redis, queue: str
) -> None:
    # given
    priorities = ["high", "normal", "low"]
    requests = [Request(f"job {n}", priority=priorities[n % 3]) for n in range(1200)]
    # when
    jobs = wide.submit_many(requests)
    # then
    found: dict[str, str] = {}
    for index in range(3):
        for stream, priority in zip(Partition(queue, index).all_jobs, priorities, strict=True):
            entries = [decode_job(fields[b"job"]) for _, fields in raw.xrange(stream)]
            numbers = [int(str(job.prompt).split()[1]) for job in entries]
            assert numbers == sorted(numbers)
            assert {priorities[number % 3] for number in numbers} == {priority}
            assert {partition_of(job.id) for job in entries} == {index}
            found |= {str(job.prompt): job.id for job in entries}
    assert [found[f"job {n}"] for n in range(1200)] == [job.id for job in jobs]
    assert wide.queue_status().queued_tokens == sum(
        256 + len(f"job {n}") // 4 + 1 for n in range(1200)
    )


def test_keys_and_ids_that_repeat_in_one_call_are_one_job(wide: Client) -> None:
    # when
    same_key = [Request("x", idempotency_key="k")] * 3
    same_id = [Request("x", job_id="1-mine")] * 2
    jobs = wide.submit_many([*same_key, "other", *same_id, *same_key])
    # then
    assert [job.id for job in jobs[:3]] == [job.id for job in jobs[6:]] == [jobs[0].id] * 3
    assert jobs[4].id == jobs[5].id == "1-mine"
    assert wide.queue_status().waiting["normal"] == 3


def test_a_limit_counts_the_jobs_of_its_own_call(any_broker: EmbeddedBroker, queue: str) -> None:
    with Client(redis_url=any_broker.url, queue=queue, max_queued_jobs=4) as client:
        client.submit("first", priority="low")
        # when
        with pytest.raises(QueueFull) as full:
            client.submit_many(["x"] * 9)
        # then
        assert (full.value.depth, full.value.limit, full.value.unit) == (4, 4, "jobs")
        assert len(full.value.accepted) == 3
        assert client.queue_status().waiting == {"high": 0, "normal": 3, "low": 1}
    with Client(redis_url=any_broker.url, queue=f"{queue}-t", max_queued_tokens=50) as client:
        # when: the third is too much, a smaller one after it is not
        sizes = [20, 20, 20, 4]
        requests = [Request([1], sampling={"max_new_tokens": size}) for size in sizes]
        with pytest.raises(QueueFull) as full:
            client.submit_many(requests)
        # then
        assert (full.value.depth, full.value.unit, len(full.value.accepted)) == (42, "tokens", 3)
        assert client.queue_status().queued_tokens == 47


def test_a_refusal_in_the_first_batch_keeps_the_second_home(
    wide: Client, raw: redis.Redis, queue: str
) -> None:
    # given
    for index in range(3):
        raw.hset(Partition(queue, index).model, "context_tokens", 5)
    # when
    with pytest.raises(PromptTooLong) as caught:
        wide.submit_many([[1], [1] * 9, *([[2]] * 700)])
    # then
    assert len(caught.value.accepted) == 499
    assert wide.queue_status().waiting["normal"] == 499


def test_a_batch_is_bounded_in_jobs_and_in_bytes() -> None:
    # given
    settings = ProducerSettings(partitions=4)
    large = prepare_all(["x" * 900_000] * 9, settings)
    small = prepare_all(["x"] * 1001, settings)
    # when / then
    sizes = [sum(len(call.keys) - 5 for call in batch.calls) for batch in batches(large, settings)]
    assert sizes == [4, 4, 1]
    sizes = [sum(len(call.keys) - 5 for call in batch.calls) for batch in batches(small, settings)]
    assert sizes == [500, 500, 1]


def test_what_was_accepted_before_redis_went_away_is_named(wide: Client) -> None:
    # given: memory for one batch
    real, calls = AsyncRedisClient.run_many, 0

    async def once(*args: object) -> list[object]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OutOfMemoryError("OOM")
        return await real(*args)  # type: ignore[arg-type]

    # when
    with (
        mock.patch.object(AsyncRedisClient, "run_many", once),
        pytest.raises(BrokerUnavailable) as caught,
    ):
        wide.submit_many(["x"] * 800)
    # then
    assert len(caught.value.accepted) == 500
    assert wide.queue_status().waiting["normal"] == 500


def test_an_error_does_not_quote_the_prompt(any_broker: EmbeddedBroker, queue: str) -> None:
    # given: a key of the wrong type where the script looks
    with (
        Client(redis_url=any_broker.url, queue=queue) as client,
        redis.Redis(port=any_broker.port) as admin,
    ):
        admin.set(Partition(queue).model, "x")
        # when / then
        with pytest.raises(BrokerUnavailable, match="WRONGTYPE") as caught, broker_errors():
            client.submit_many(["secret words", "more secret words"])
        assert "secret" not in str(caught.value)
