"""Batches of a gateway's services without HTTP: made, waited for, read."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from rose_gateway.services import Services
from rose_gateway.storage.batch_repository import Batch, BatchParameters
from rose_gateway.storage.file_repository import FileRecord, new_file_id
from tests.support.batch_lines import COMPLETIONS
from tests.support.time_limit import TimeLimit

OWNER = ""
_LIMIT_S = 120


async def uploaded(services: Services, lines: Iterable[bytes], owner: str = OWNER) -> FileRecord:
    """A file with these lines."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        for line in lines:
            yield line + b"\n"

    now_ms = await services.files.repository.now_ms()
    file_id = new_file_id(now_ms)
    path = f"files/{file_id}"
    size = await services.files.store.write(path, chunks())
    record = FileRecord(file_id, owner, "in.jsonl", "batch", size, now_ms // 1000, None, (path,))
    await services.files.repository.add(record)
    return record


async def created(
    services: Services,
    lines: Iterable[bytes],
    *,
    owner: str = OWNER,
    endpoint: str = COMPLETIONS,
    lives_s: int = 86_400,
) -> Batch:
    source = await uploaded(services, lines, owner)
    now_s = await services.batches.now_ms() // 1000
    parameters = BatchParameters(owner, endpoint, source.id, "24h", now_s, now_s + lives_s)
    return await services.batches.create(parameters)


async def look(services: Services, batch: Batch) -> Batch:
    looked = await services.batches.find(batch.id)
    assert looked is not None
    return looked


async def reached(services: Services, batch: Batch, condition: Callable[[Batch], bool]) -> Batch:
    """The batch as soon as this is true of it."""
    limit = TimeLimit(_LIMIT_S)
    while not condition(looked := await look(services, batch)):
        assert not limit.passed, looked
        await asyncio.sleep(0.02)
    return looked


async def ended(services: Services, batch: Batch) -> Batch:
    return await reached(services, batch, lambda looked: looked.ended)


async def records(services: Services, batch: Batch, file_id: str | None) -> list[Any]:
    """What the lines of an output or error file say."""
    if file_id is None:
        return []
    record = await services.files.repository.get(batch.parameters.owner, file_id)
    content = b"".join([chunk async for chunk in services.files.content(record)])
    assert len(content) == record.bytes
    return [json.loads(line) for line in content.splitlines()]


def text_of(record: Any) -> str:
    text: str = record["response"]["body"]["choices"][0]["text"]
    return text
