"""What Redis knows of batches, and that one runner at a time may change it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis

from rose import transport
from rose.errors import BatchNotFound, QuotaExceeded
from rose.protocol.keys import BulkKeys
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.storage.batch_repository import (
    Batch,
    BatchParameters,
    BatchRepository,
    Lease,
    LeaseLost,
    Problem,
)
from rose_producer import ProducerSettings

OWNER = "0123456789ab"
LEASE_S = 60.0


@pytest.fixture
async def repository(each_broker: EmbeddedBroker) -> AsyncIterator[BatchRepository]:
    client = transport.AsyncRedisClient(ProducerSettings(redis_url=each_broker.url))
    yield BatchRepository(client, keep_s=1000)
    await client.aclose()


@pytest.fixture
def own_raw(each_broker: EmbeddedBroker):
    with redis.Redis(port=each_broker.port, protocol=2) as client:
        yield client


async def create(
    repository: BatchRepository, owner: str = OWNER, most: int | None = None, **fields: Any
) -> Batch:
    now_s = await repository.now_ms() // 1000
    window = {"created_at": now_s, "expires_at": now_s + 86_400, **fields}
    return await repository.create(
        BatchParameters(owner, "/v1/responses", "file-1", "24h", **window), most
    )


async def claimed(
    repository: BatchRepository, runner: str = "a", lease_s: float = LEASE_S
) -> Lease:
    (lease,) = await repository.claim(runner, lease_s=lease_s, limit=1)
    return lease


async def test_a_batch_is_known_to_its_owner_alone(repository: BatchRepository) -> None:
    # given
    batch = await create(repository, metadata={"a": "ü"}, output_expires_s=3600)
    # then
    assert await repository.get(OWNER, batch.id) == batch
    for owner, batch_id in (("", batch.id), ("ba98", batch.id), (OWNER, batch.id + "0")):
        with pytest.raises(BatchNotFound):
            await repository.get(owner, batch_id)
    with pytest.raises(BatchNotFound):
        await repository.cancel("ba98", batch.id)
    assert await repository.list("ba98", limit=10) == ([], False)


async def test_an_owner_with_many_batches_delays_anothers_by_one_turn(
    repository: BatchRepository,
) -> None:
    # given: five of one owner, then one of another
    greedy = [await create(repository) for _ in range(5)]
    modest = await create(repository, "ba9876543210")
    # when: runners claim them one by one
    order = [(await claimed(repository, f"runner-{n}")).batch_id for n in range(6)]
    # then: the other one's comes second at the latest, and none is left out
    assert modest.id in order[:2]
    assert sorted(order) == sorted([modest.id, *(batch.id for batch in greedy)])


async def test_batches_claimed_together_are_shared_by_owner(repository: BatchRepository) -> None:
    # given
    greedy = [await create(repository) for _ in range(3)]
    modest = await create(repository, "ba9876543210")
    # when
    leases = await repository.claim("runner", lease_s=LEASE_S, limit=3)
    # then
    ids = {lease.batch_id for lease in leases}
    assert modest.id in ids
    assert len(ids & {batch.id for batch in greedy}) == 2


async def test_an_owner_has_no_more_unfinished_batches_than_its_quota(
    repository: BatchRepository,
) -> None:
    # given
    await create(repository, most=2)
    await create(repository, most=2)
    # then
    with pytest.raises(QuotaExceeded, match="2 unfinished batches"):
        await create(repository, most=2)
    assert await repository.unfinished() == 2
    await create(repository, "ba9876543210", most=2)
    # when: one has ended
    for lease in await repository.claim("runner", lease_s=LEASE_S, limit=1):
        await repository.finish(lease, "completed")
    # then: there is room for one
    await create(repository, most=2)
    with pytest.raises(QuotaExceeded):
        await create(repository, most=2)


async def test_batches_are_listed_the_newest_first_a_page_at_a_time(
    repository: BatchRepository,
) -> None:
    # given
    batches = [await create(repository) for _ in range(5)]
    newest_first = sorted((batch.id for batch in batches), reverse=True)
    # when
    first, more = await repository.list(OWNER, limit=2)
    second, still_more = await repository.list(OWNER, after=first[-1].id, limit=3)
    # then
    assert [batch.id for batch in (*first, *second)] == newest_first
    assert (more, still_more) == (True, False)


async def test_one_runner_at_a_time_has_a_batch(repository: BatchRepository) -> None:
    # given
    batch = await create(repository)
    lease = await claimed(repository)
    # then
    assert lease == Lease(batch.id, 1, "a")
    assert await repository.claim("b", lease_s=LEASE_S, limit=9) == []
    assert await repository.renew(lease, lease_s=LEASE_S) == "validating"
    # when: it leaves
    assert await repository.release(lease) == 0
    # then
    assert await claimed(repository, "b") == Lease(batch.id, 2, "b")


async def test_a_runner_gets_no_more_batches_than_it_asks_for(repository: BatchRepository) -> None:
    batches = [await create(repository) for _ in range(3)]
    some = await repository.claim("a", lease_s=LEASE_S, limit=2)
    rest = await repository.claim("b", lease_s=LEASE_S, limit=2)
    assert (len(some), len(rest)) == (2, 1)
    assert {lease.batch_id for lease in (*some, *rest)} == {batch.id for batch in batches}


async def test_a_batch_whose_runner_is_silent_is_taken_over(repository: BatchRepository) -> None:
    # given
    await create(repository)
    lost = await claimed(repository, lease_s=0.05)
    # when
    async with asyncio.timeout(30):
        while not (found := await repository.claim("b", lease_s=LEASE_S, limit=1)):
            await asyncio.sleep(0.01)
    # then: whatever the first one does comes to nothing
    await assert_has_lost(repository, lost)
    # and: the second one goes on
    assert found[0].epoch == 2
    assert (await repository.count_lines(found[0], [1], [])).completed == 1


@pytest.mark.parametrize("next_runner", ["b", "a-again"])
async def test_a_runner_whose_claim_a_failover_has_forgotten_changes_nothing(
    repository: BatchRepository, own_raw: redis.Redis, next_runner: str
) -> None:
    # given: the heir of the primary knows the batch as it was before the claim
    batch = await create(repository)
    state = BulkKeys.batch(batch.id)
    fields, until = own_raw.hgetall(state), own_raw.zscore(BulkKeys.UNFINISHED, batch.id)
    lost = await claimed(repository)
    own_raw.delete(state)
    own_raw.hset(state, mapping=fields)
    own_raw.zadd(BulkKeys.UNFINISHED, {batch.id: until})
    # when: another one gets it by the same epoch
    lease = await claimed(repository, next_runner)
    # then
    assert lease.epoch == lost.epoch
    await assert_has_lost(repository, lost)
    assert (await repository.count_lines(lease, [1], [])).completed == 1


async def assert_has_lost(repository: BatchRepository, lost: Lease) -> None:
    """Whatever the runner does comes to nothing."""
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: repository.renew(lost, lease_s=LEASE_S),
        lambda: repository.release(lost),
        lambda: repository.count_lines(lost, [1], []),
        lambda: repository.register(lost, b"checkpoint", until_ms=2**41),
        lambda: repository.settle(lost, "failed"),
        lambda: repository.advance(lost, "validating", "in_progress", total=3),
        lambda: repository.finish(lost, "completed"),
    ]
    for call in calls:
        with pytest.raises(LeaseLost):
            await call()
    after = await repository.find(lost.batch_id)
    assert after is not None
    assert (after.status, after.total, after.completed) == ("validating", None, 0)
    assert await repository.checkpoint(lost.batch_id) is None


async def test_a_lease_from_before_the_clock_was_set_back_ends(
    repository: BatchRepository, own_raw: redis.Redis
) -> None:
    batch = await create(repository)
    await claimed(repository)
    own_raw.zincrby(BulkKeys.UNFINISHED, 10 * 3600 * 1000, batch.id)
    assert (await claimed(repository, "b")).epoch == 2


async def test_no_line_counts_twice(repository: BatchRepository) -> None:
    # given
    batch = await create(repository)
    lease = await claimed(repository)
    assert await repository.advance(lease, "validating", "in_progress", total=9) == "in_progress"
    # when
    first = await repository.count_lines(lease, [1, 2, 9], [3])
    again = await repository.count_lines(
        lease, [2, 3, 4], []
    )  # 3 was asked again, and succeeds now
    # then
    assert (first.completed, first.failed) == (3, 1)
    assert (again.completed, again.failed) == (1, 0)
    looked = await repository.get(OWNER, batch.id)
    assert (looked.completed, looked.failed, looked.total) == (5, 0, 9)
    assert await repository.ended_lines(batch.id) == bytes([0b11110000, 0b10000000])


async def test_the_last_checkpoint_counts_until_the_batch_is_given_up(
    repository: BatchRepository, own_raw: redis.Redis
) -> None:
    # given
    batch = await create(repository)
    lease = await claimed(repository)
    # when
    for checkpoint in (b"one", b"two"):
        await repository.register(lease, checkpoint, until_ms=2**41)
    # then
    assert await repository.checkpoint(batch.id) == b"two"
    assert own_raw.pexpiretime(BulkKeys.checkpoint(batch.id)) == 2**41


async def test_a_cancelled_batch_does_not_go_on_by_itself(repository: BatchRepository) -> None:
    # given
    batch = await create(repository)
    lease = await claimed(repository)
    # when
    cancelled = await repository.cancel(OWNER, batch.id)
    # then
    assert cancelled.status == "cancelling"
    assert cancelled.times.keys() == {"cancelling_at"}
    advanced = await repository.advance(lease, "validating", "in_progress", total=1)
    assert advanced == "cancelling"
    assert (await repository.count_lines(lease, [1], [])).status == "cancelling"
    assert await repository.renew(lease, lease_s=LEASE_S) == "cancelling"


async def test_an_ended_batch_keeps_its_counts_and_nothing_else(
    repository: BatchRepository, own_raw: redis.Redis
) -> None:
    # given
    batch = await create(repository)
    lease = await claimed(repository)
    await repository.advance(lease, "validating", "in_progress", total=3)
    await repository.count_lines(lease, [1, 2], [3])
    await repository.register(lease, b"checkpoint", until_ms=2**41)
    await repository.settle(lease, "failed", [Problem("odd", "it is odd", 3)])
    await repository.advance(lease, "in_progress", "finalizing", output_file_id="file-2")
    await repository.advance(lease, "in_progress", "finalizing", output_file_id="file-3")
    # when
    for _ in range(2):
        await repository.finish(lease, "failed")
    # then
    ended = await repository.get(OWNER, batch.id)
    assert (ended.status, ended.completed, ended.failed, ended.total) == ("failed", 2, 1, 3)
    assert ended.output_file_id == "file-2"
    assert ended.problems == (Problem("odd", "it is odd", 3),)
    assert ended.times.keys() == {"in_progress_at", "finalizing_at", "failed_at"}
    names = {key.decode() for key in own_raw.scan_iter("*") if b"batch_" in key}
    assert names == {BulkKeys.batch(batch.id)}
    assert 0 < own_raw.ttl(BulkKeys.batch(batch.id)) <= 1000
    assert await repository.unfinished() == 0
    # and: it comes to nobody any more
    assert await repository.claim("b", lease_s=LEASE_S, limit=9) == []
    assert (await repository.cancel(OWNER, batch.id)).status == "failed"


async def test_a_batch_that_has_expired_holds_nobody_up(
    repository: BatchRepository, own_raw: redis.Redis
) -> None:
    # given
    gone, spoilt, good = [await create(repository) for _ in range(3)]
    own_raw.delete(BulkKeys.batch(gone.id))
    own_raw.delete(BulkKeys.batch(spoilt.id))
    own_raw.set(BulkKeys.batch(spoilt.id), "somebody else's")
    # then
    (lease,) = await repository.claim("a", lease_s=LEASE_S, limit=9)
    assert lease.batch_id == good.id
    assert await repository.unfinished() == 1
    assert [batch.id for batch in (await repository.list(OWNER, limit=9))[0]] == [good.id]
