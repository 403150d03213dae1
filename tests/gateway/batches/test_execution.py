"""A batch from its file to its output."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from rose.errors import StorageUnavailable
from rose_gateway.batches.execution import BatchLineProcessor
from rose_gateway.batches.line import Answer, Line
from rose_gateway.batches.line_processor import CancellationToken
from rose_gateway.batches.run import STORED_LINES
from rose_gateway.batches.runner import running_batches
from rose_gateway.services import Services
from rose_gateway.storage.file_store import FileStore
from tests.gateway.batches.conftest import OpenServices
from tests.support.batch_lines import completion, raw_line
from tests.support.batch_runner import asks, both_files, ids
from tests.support.batches import created, ended, text_of


async def test_every_line_is_answered_in_the_order_of_the_input(services: Services) -> None:
    # given
    lines = asks(STORED_LINES + 20)
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
            short, long = await peak(STORED_LINES), await peak(4 * STORED_LINES)
        finally:
            tracemalloc.stop()
    # then: 1500 answers more are 30 MB more; a slow disk may hold up a part or two
    assert long < short + 10_000_000
