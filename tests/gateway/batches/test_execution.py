"""A batch from its file to its output, whoever runs it."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client.exposition import generate_latest

from rose.errors import StorageUnavailable
from rose.protocol import Partition
from rose.protocol.keys import BulkKeys
from rose_cli.demo.broker import EmbeddedBroker
from rose_cli.demo.workers import WorkerProcess
from rose_gateway.access.keys import KeyLimits
from rose_gateway.batches.answer import Answer
from rose_gateway.batches.cancellation import CancellationToken
from rose_gateway.batches.execution import BatchExecution, BatchLineProcessor
from rose_gateway.batches.line import Line
from rose_gateway.batches.parts import PART_LINES
from rose_gateway.batches.repository import Batch, Lease
from rose_gateway.batches.runner import running_batches
from rose_gateway.files.store import FileStore
from rose_gateway.services import Services
from tests.support.batch_lines import completion, opened_services, raw_line
from tests.support.batches import created, ended, look, reached, records, text_of
from tests.support.bench import until
from tests.support.echo import SLOW, has_no_jobs, serving

OpenServices = Callable[..., Any]


@pytest.fixture
def open_services(own_broker: EmbeddedBroker, queue: str, tmp_path: Path) -> OpenServices:
    """Nobody runs batches behind it yet. A runner that is silent is dead after a second."""

    def opened(**settings: Any) -> Any:
        given = {"storage": str(tmp_path), "batch_lease_s": 1, **settings}
        return opened_services(own_broker.url, queue, **given)

    return opened


@pytest.fixture
async def services(
    own_broker: EmbeddedBroker, queue: str, open_services: OpenServices
) -> AsyncIterator[Services]:
    """With a worker."""
    with serving("w", own_broker.url, queue=queue):
        async with open_services() as services:
            yield services


@pytest.fixture
def slow_worker(own_broker: EmbeddedBroker, queue: str) -> WorkerProcess:
    """Four slots, 50 tokens a second."""
    with serving("w", own_broker.url, queue=queue, max_batch_size=4, **SLOW) as worker:
        yield worker


@pytest.fixture
def own_raw(own_broker: EmbeddedBroker) -> redis.Redis:
    with redis.Redis(port=own_broker.port, protocol=2) as client:
        yield client


def asks(count: int, tokens: int = 2) -> list[bytes]:
    return [raw_line(f"line-{n}", completion(f"{n}", tokens)) for n in range(1, count + 1)]


def ids(said: list[Any]) -> list[str]:
    return [record["custom_id"] for record in said]


def codes(said: list[Any]) -> set[str]:
    return {record["error"]["code"] for record in said}


async def claim(services: Services) -> Lease:
    async with asyncio.timeout(60):
        while not (leases := await services.batches.claim("test", lease_s=1, most=1)):
            await asyncio.sleep(0.05)
    return leases[0]


async def run_once(services: Services, until: Callable[[], Any]) -> None:
    """Somebody claims the batch, and is no more when this is done: without a word."""
    work = asyncio.create_task(
        BatchExecution(services, services.batches, await claim(services)).run()
    )
    await until()
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


class _Doomed(BatchLineProcessor):
    """Answers so many lines that had not ended. Others are sent, and never answered: its runner is
    about to die."""

    left = 0

    async def process(self, line: Line, cancellation: CancellationToken) -> Answer:
        answer = await super().process(line, cancellation)
        if not self.has_ended(line):
            if _Doomed.left == 0:
                await asyncio.Event().wait()
            _Doomed.left -= 1
        return answer


async def both_files(services: Services, batch: Batch) -> tuple[list[Any], list[Any]]:
    return (
        await records(services, batch, batch.output_file_id),
        await records(services, batch, batch.error_file_id),
    )


async def test_every_line_is_answered_in_the_order_of_the_input(services: Services) -> None:
    # given
    lines = asks(PART_LINES + 20)
    # when
    async with running_batches(services):
        batch = await ended(services, await created(services, lines))
    # then
    assert (batch.status, batch.total) == ("completed", len(lines))
    assert (batch.completed, batch.failed) == (len(lines), 0)
    output, errors = await both_files(services, batch)
    assert ids(output) == [f"line-{n}" for n in range(1, len(lines) + 1)]
    assert text_of(output[8]) == "57 57 "
    assert (batch.error_file_id, errors) == (None, [])


async def test_wrong_lines_are_answered_in_the_error_file_with_their_numbers(
    services: Services,
) -> None:
    # given
    lines = [
        raw_line("good", completion("ab")),
        b"not JSON",
        b"",
        raw_line("other", completion("ab"), "/v1/chat/completions"),
        raw_line("unknown", {"model": "nobody", "prompt": "ab"}),
        raw_line("good too", completion("ab")),
    ]
    # when
    async with running_batches(services):
        batch = await ended(services, await created(services, lines))
    # then
    output, errors = await both_files(services, batch)
    assert ids(output) == ["good", "good too"]
    assert [(e["line"], e["custom_id"]) for e in errors] == [
        (2, None),
        (4, "other"),
        (5, "unknown"),
    ]
    assert errors[2]["response"]["status_code"] == 404
    assert (batch.status, batch.total, batch.completed, batch.failed) == ("completed", 5, 2, 3)


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


async def test_runners_die_and_every_line_is_answered_once(
    services: Services, own_raw: redis.Redis, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    draw, count = random.Random(1), PART_LINES * 2 + 100
    batch = await created(services, asks(count))
    # when: each runner is no more after some lines, long before the last one
    with monkeypatch.context() as patched:
        patched.setattr("rose_gateway.batches.execution.BatchLineProcessor", _Doomed)
        lines = 0
        for _ in range(5):
            _Doomed.left = draw.randrange(1, 150)
            lines += _Doomed.left

            async def counted(lines: int = lines) -> None:
                await reached(services, batch, lambda looked: looked.completed == lines)

            await run_once(services, counted)
    assert (await look(services, batch)).status == "in_progress"
    async with running_batches(services):
        batch = await ended(services, batch)
    # then
    output, _ = await both_files(services, batch)
    assert ids(output) == [f"line-{n}" for n in range(1, count + 1)]
    assert (batch.completed, batch.failed) == (count, 0)
    added = own_raw.xinfo_stream(Partition(queue).all_jobs[-1])["entries-added"]
    assert added == count


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
        async with asyncio.timeout(60):
            while own_raw.hget(BulkKeys.batch(batch.id), "epoch") != b"2":
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # either way
        await services.batches.cancel("", batch.id)
        batch = await ended(services, batch)
        output, errors = await both_files(services, batch)
    # then
    assert ids(output) == [f"line-{n}" for n in range(2, 8)]
    assert (batch.completed, batch.failed) == (6, 34)
    assert codes(errors) == {"batch_cancelled"}


async def test_a_gateway_that_stops_leaves_its_batches_at_once(
    slow_worker: WorkerProcess, open_services: OpenServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rose_gateway.batches.runner._RELEASE_S", 60.0)
    async with open_services(batch_lease_s=600) as services:
        batch = await created(services, [*asks(1), *asks(30, 5000)[1:]])
        async with running_batches(services):
            await reached(services, batch, lambda looked: looked.completed > 0)
        assert await services.batches.claim("another", lease_s=1, most=9) == [Lease(batch.id, 2)]


async def test_a_storage_that_is_away_costs_time_and_no_line(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: it fails when it is read, in the middle, and when it is written
    read, write = FileStore.read, FileStore.write
    failures = {"read": 2, "write": 2}

    def fails(what: str) -> None:
        if failures[what]:
            failures[what] -= 1
            raise StorageUnavailable("away")

    async def reads(store: FileStore, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        async with aclosing(read(store, path, offset=offset)) as chunks:
            async for chunk in chunks:
                yield chunk[: len(chunk) // 2]
                fails("read")
                yield chunk[len(chunk) // 2 :]

    async def writes(store: FileStore, path: str, chunks: AsyncIterator[bytes]) -> int:
        fails("write")
        return await write(store, path, chunks)

    batch = await created(services, asks(40))
    monkeypatch.setattr(FileStore, "read", reads)
    monkeypatch.setattr(FileStore, "write", writes)
    # when
    async with running_batches(services):
        batch = await ended(services, batch)
    # then
    assert failures == {"read": 0, "write": 0}
    output, _ = await both_files(services, batch)
    assert ids(output) == [f"line-{n}" for n in range(1, 41)]


async def test_a_gateway_that_is_not_to_run_batches_counts_them(
    open_services: OpenServices,
) -> None:
    async with open_services(run_batches=False) as services, running_batches(services):
        await created(services, asks(1))
        async with asyncio.timeout(60):
            while b"rose_gateway_unfinished_batches 1.0" not in exposed(services):
                await asyncio.sleep(0.05)
        assert len(await services.batches.claim("another", lease_s=1, most=9)) == 1


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
    own_raw.hset(BulkKeys.parts(batch.id), "0", "no part")
    # when
    async with running_batches(services):
        batch = await ended(services, batch)
    # then
    assert (batch.status, batch.problems[0].code) == ("failed", "server_error")


class _Echo(BatchLineProcessor):
    """Answers by itself, and at length."""

    async def process(self, line: Line, cancellation: CancellationToken) -> Answer:
        await asyncio.sleep(0)
        return Answer(line.number, None, b"%020000d" % line.number, succeeded=True)


async def test_a_longer_batch_takes_no_more_memory(
    open_services: OpenServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr("rose_gateway.batches.execution.BatchLineProcessor", _Echo)

    async def peak(count: int) -> int:
        batch = await created(services, asks(count))
        await asyncio.sleep(0)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        batch = await ended(services, batch)
        assert (batch.completed, batch.status) == (count, "completed")
        return tracemalloc.get_traced_memory()[1] - before

    async with open_services() as services, running_batches(services):
        await peak(100)
        tracemalloc.start()
        try:
            # when
            short, long = await peak(PART_LINES), await peak(4 * PART_LINES)
        finally:
            tracemalloc.stop()
    # then: 1500 answers more are 30 MB more; a slow disk may hold up a part or two
    assert long < short + 10_000_000


def exposed(services: Services) -> bytes:
    return generate_latest(services.metrics.registry)
