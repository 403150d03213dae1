"""A runner of batches that ends when the test says so, and what its batch has said."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rose_gateway.batches.execution import BatchExecution
from rose_gateway.services import Services
from rose_gateway.storage.batch_repository import Batch, Lease
from tests.support.batch_lines import completion, raw_line
from tests.support.batches import records
from tests.support.time_limit import TimeLimit


def asks(count: int, tokens: int = 2) -> list[bytes]:
    return [raw_line(f"line-{n}", completion(f"{n}", tokens)) for n in range(1, count + 1)]


def ids(said: list[Any]) -> list[str]:
    return [record["custom_id"] for record in said]


def codes(said: list[Any]) -> set[str]:
    return {record["error"]["code"] for record in said}


async def claim(services: Services) -> Lease:
    limit = TimeLimit(60)
    while not (leases := await services.batches.claim("test", lease_s=1, limit=1)):
        assert not limit.passed, "nothing to claim"
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


async def both_files(services: Services, batch: Batch) -> tuple[list[Any], list[Any]]:
    return (
        await records(services, batch, batch.output_file_id),
        await records(services, batch, batch.error_file_id),
    )
