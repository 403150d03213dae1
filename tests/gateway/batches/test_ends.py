"""A batch that ends before its last line: cancelled, expired, or given up."""

import asyncio
from typing import Any

import pytest
import redis

from rose.protocol import Partition
from rose.protocol.keys import BulkKeys
from rose_cli.local.services import WorkerProcess
from rose_gateway.batches.runner import running_batches
from rose_gateway.services import Services
from rose_gateway.settings import KeyLimits
from tests.gateway.batches.conftest import OpenServices
from tests.support.batch_runner import asks, both_files, codes, ids, run_once
from tests.support.batches import created, ended, reached
from tests.support.bench import until
from tests.support.echo import has_no_jobs


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        pytest.param([], ("empty_file", None), id="empty"),
        pytest.param([b"", b" "], ("empty_file", None), id="blank"),
        pytest.param(asks(4), ("too_many_lines", 4), id="long"),
        pytest.param([*asks(2), *asks(1)], ("duplicate_custom_id", 3), id="repeated"),
    ],
)
async def test_a_file_that_cannot_be_a_batch_fails_before_anything_is_asked(
    open_services: OpenServices, own_raw: redis.Redis, queue: str, lines: list[bytes], problem: Any
) -> None:
    # when
    async with open_services(max_batch_lines=3) as services, running_batches(services):
        batch = await ended(services, await created(services, lines))
    # then
    assert batch.status == "failed"
    assert [(p.code, p.line) for p in batch.problems] == [problem]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert own_raw.exists(*Partition(queue).all_jobs) == 0


async def test_a_batch_whose_input_is_gone_fails(services: Services) -> None:
    # given
    batch = await created(services, asks(3))
    await services.files.delete("", batch.parameters.input_file_id)
    # when
    async with running_batches(services):
        batch = await ended(services, batch)
    # then
    assert (batch.status, batch.problems[0].code) == ("failed", "input_file_gone")


async def test_it_is_cancelled_in_the_middle(
    slow_worker: WorkerProcess, open_services: OpenServices, own_raw: redis.Redis, queue: str
) -> None:
    # given
    async with open_services(batch_window=8) as services, running_batches(services):
        batch = await created(services, [*asks(6), *asks(600, 5000)[6:]])
        await reached(services, batch, lambda looked: looked.completed == 6)
        # when
        cancelling = await services.batches.cancel("", batch.id)
        batch = await ended(services, batch)
        output, errors = await both_files(services, batch)
    # then
    assert cancelling.status == "cancelling"
    assert (batch.status, batch.completed, batch.failed) == ("cancelled", 6, 594)
    assert ids(output) == [f"line-{n}" for n in range(1, 7)]
    assert [error["line"] for error in errors] == list(range(7, 601))
    assert codes(errors) == {"batch_cancelled"}
    # what was cancelled while it waited goes with the next take
    await until(lambda: has_no_jobs(own_raw, Partition(queue)))


async def test_it_expires_in_the_middle(
    slow_worker: WorkerProcess, open_services: OpenServices, own_raw: redis.Redis, queue: str
) -> None:
    # given
    async with open_services(batch_window=8) as services, running_batches(services):
        # when
        lines = [*asks(3), *asks(100, 5000)[3:]]
        batch = await ended(services, await created(services, lines, lives_s=3))
        output, errors = await both_files(services, batch)
    # then
    assert batch.status == "expired"
    assert batch.times.keys() == {"in_progress_at", "finalizing_at", "expired_at"}
    assert len(output) == batch.completed <= 3
    assert codes(errors) == {"batch_expired"}
    assert sorted(ids(output) + ids(errors)) == sorted(f"line-{n}" for n in range(1, 101))
    await until(lambda: has_no_jobs(own_raw, Partition(queue)))


async def test_one_that_nobody_ran_in_its_time_expires_too(services: Services) -> None:
    # given
    batch = await created(services, asks(3), lives_s=0)
    # when
    async with running_batches(services):
        batch = await ended(services, batch)
    # then
    _, errors = await both_files(services, batch)
    assert (batch.status, batch.failed, codes(errors)) == ("expired", 3, {"batch_expired"})


async def test_what_had_ended_before_a_cancellation_is_answered_by_the_next_runner(
    slow_worker: WorkerProcess, open_services: OpenServices
) -> None:
    # given: a runner that dies with answers that are not stored
    async with open_services(batch_window=8) as services:
        batch = await created(services, [*asks(6), *asks(40, 5000)[6:]])

        async def six() -> None:
            await reached(services, batch, lambda looked: looked.completed == 6)

        await run_once(services, six)
        # when
        await services.batches.cancel("", batch.id)
        async with running_batches(services):
            batch = await ended(services, batch)
        output, errors = await both_files(services, batch)
    # then
    assert ids(output) == [f"line-{n}" for n in range(1, 7)]
    assert (len(errors), codes(errors)) == (34, {"batch_cancelled"})


async def test_what_had_ended_counts_though_the_next_runner_is_cancelled_before_it(
    slow_worker: WorkerProcess, open_services: OpenServices, own_raw: redis.Redis
) -> None:
    # given: six lines have ended under a runner that is dead
    async with open_services(batch_window=2) as services:
        batch = await created(services, [*asks(1, 5000), *asks(7)[1:], *asks(40, 5000)[7:]])

        async def six() -> None:
            await reached(services, batch, lambda looked: looked.completed == 6)

        await run_once(services, six)
    # when: the next one is cancelled while it has the first line in hand
    async with open_services(batch_window=1) as services, running_batches(services):
        await until(lambda: own_raw.hget(BulkKeys.batch(batch.id), "epoch") == b"2")
        await asyncio.sleep(0.5)  # either way
        await services.batches.cancel("", batch.id)
        batch = await ended(services, batch)
        output, errors = await both_files(services, batch)
    # then
    assert ids(output) == [f"line-{n}" for n in range(2, 8)]
    assert (batch.completed, batch.failed) == (6, 34)
    assert codes(errors) == {"batch_cancelled"}


async def test_the_batches_of_a_revoked_key_are_cancelled(services: Services) -> None:
    # given
    key, _ = await services.keys.create("k", KeyLimits())
    batch = await created(services, asks(5), owner=key.id)
    await services.keys.revoke(key.id)
    # when
    async with running_batches(services):
        batch = await ended(services, batch)
    # then
    assert batch.status == "cancelled"
    assert batch.completed + batch.failed == 5


async def test_a_batch_that_makes_every_runner_fail_is_given_up(
    services: Services, own_raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: somebody else has written there
    monkeypatch.setattr("rose_gateway.batches.runner._PAUSE_S", 0.0)
    monkeypatch.setattr("rose_gateway.batches.runner._MAX_FAILURES", 3)
    batch = await created(services, asks(5))
    own_raw.set(BulkKeys.checkpoint(batch.id), "no checkpoint")
    # when
    async with running_batches(services):
        batch = await ended(services, batch)
    # then
    assert (batch.status, batch.problems[0].code) == ("failed", "server_error")
