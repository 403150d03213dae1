"""Runners that die, stop, or are not to run at all."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
import redis
from prometheus_client.exposition import generate_latest

from rose.protocol import Partition
from rose_cli.local.services import WorkerProcess
from rose_gateway.batches.execution import BatchLineProcessor
from rose_gateway.batches.line import Answer, Line
from rose_gateway.batches.line_processor import CancellationToken
from rose_gateway.batches.run import STORED_LINES
from rose_gateway.batches.runner import running_batches
from rose_gateway.services import Services
from rose_gateway.storage.batch_repository import BatchRepository, Lease
from tests.gateway.batches.conftest import OpenServices
from tests.support.batch_runner import asks, both_files, claim, ids, run_once
from tests.support.batches import created, ended, look, reached
from tests.support.bench import until


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


async def test_runners_die_and_every_line_is_answered_once(
    services: Services, own_raw: redis.Redis, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    draw, count = random.Random(1), STORED_LINES * 2 + 100
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


async def test_a_gateway_that_stops_leaves_its_batches_at_once(
    slow_worker: WorkerProcess, open_services: OpenServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rose_gateway.batches.runner._RELEASE_S", 60.0)
    # no more lines in flight than slots: the short one runs, in whatever order they come
    async with open_services(batch_lease_s=600, batch_window=4) as services:
        batch = await created(services, [*asks(1), *asks(30, 5000)[1:]])
        async with running_batches(services):
            await reached(services, batch, lambda looked: looked.completed > 0)
        left = await services.batches.claim("another", lease_s=1, limit=9)
        assert left == [Lease(batch.id, 2, "another")]


async def test_a_gateway_that_is_not_to_run_batches_counts_them(
    open_services: OpenServices,
) -> None:
    async with open_services(run_batches=False) as services, running_batches(services):
        await created(services, asks(1))
        await until(lambda: b"rose_gateway_unfinished_batches 1.0" in exposed(services))
        assert len(await services.batches.claim("another", lease_s=1, limit=9)) == 1


def exposed(services: Services) -> bytes:
    return generate_latest(services.metrics.registry)


class _Poisoned(BatchLineProcessor):
    """One line of the batch is the end of every runner that prepares it."""

    died: asyncio.Event

    async def process(self, line: Line, cancellation: CancellationToken) -> Answer:
        if self._suspects.given_up(line.number):
            return await super().process(line, cancellation)
        async with self.preparing(line):
            if line.number == 3:
                _Poisoned.died.set()
                await asyncio.Event().wait()
        return await super().process(line, cancellation)


async def test_a_line_that_ends_its_runners_is_answered_with_an_error_and_the_batch_ends(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr("rose_gateway.batches.execution.BatchLineProcessor", _Poisoned)
    monkeypatch.setattr(BatchRepository, "prepare", _noted := _Noted(BatchRepository.prepare))
    batch = await created(services, asks(5))
    # when: no more than a few runners die of it, each without a word
    for _ in range(4):
        _Poisoned.died = asyncio.Event()
        _noted.silent = False

        async def dead() -> None:
            await _Poisoned.died.wait()
            _noted.silent = True  # it is killed: what would come after it does not

        await run_once(services, dead)
    _noted.silent = False
    async with running_batches(services):
        batch = await ended(services, batch)
    # then
    output, errors = await both_files(services, batch)
    assert batch.status == "completed"
    assert ids(output) == ["line-1", "line-2", "line-4", "line-5"]
    assert [(said["line"], said["error"]["code"]) for said in errors] == [(3, "line_failed")]


class _Noted:
    """`BatchRepository.prepare`, until the process is dead."""

    def __init__(self, prepare: Callable[..., Awaitable[None]]) -> None:
        self._prepare = prepare
        self.silent = False

    def __get__(self, repository: BatchRepository, _: object) -> Callable[..., Awaitable[None]]:
        async def prepare(lease: Lease, line: int | None) -> None:
            if not self.silent:
                await self._prepare(repository, lease, line)

        return prepare


async def test_runners_that_end_in_between_blame_no_line(services: Services) -> None:
    # given
    batch = await created(services, asks(5))
    for _ in range(5):
        # when: each is no more before it has done anything
        await claim(services)
    # then
    looked = await look(services, batch)
    assert (looked.lapses, looked.line_failures) == (4, {})
    async with running_batches(services):
        batch = await ended(services, batch)
    assert (batch.completed, batch.failed) == (5, 0)
