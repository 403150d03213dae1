"""Lines of batches, and the gateway's services without HTTP, which answer them."""

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from rose_gateway.batches.line import Line, read_lines
from rose_gateway.metrics import Metrics
from rose_gateway.services import Services, open_services
from rose_gateway.settings import GatewaySettings

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"


@asynccontextmanager
async def opened_services(
    redis_url: str, queue: str, **settings: Any
) -> AsyncGenerator[Services, None]:
    given = GatewaySettings(redis_url=redis_url, queue=queue, **settings)
    async with open_services(given, Metrics()) as services:
        yield services


def line_of(number: int, body: Any, url: str = COMPLETIONS, **fields: Any) -> Line:
    """As `read_lines` would cut it; `fields` go into the envelope."""
    raw = raw_line(f"line-{number}", body, url, **fields)
    return Line(number, number * (len(raw) + 1), raw)


def raw_line(custom_id: str, body: Any, url: str = COMPLETIONS, **fields: Any) -> bytes:
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **fields}
    ).encode()


def completion(prompt: str, tokens: int = 2, **fields: Any) -> dict[str, Any]:
    """For the null engine, which echoes the prompt's bytes."""
    return {"model": "null", "prompt": prompt, "max_tokens": tokens, **fields}


async def one_by_one(lines: Iterable[Line]) -> AsyncGenerator[Line, None]:
    for line in lines:
        yield line


async def cut(data: bytes, sizes: Iterable[int], **options: Any) -> list[Line]:
    """The lines of a file that comes in chunks of these sizes, the rest in one."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        position = 0
        for size in sizes:
            yield data[position : position + size]
            position += size
        yield data[position:]

    given = {"max_line_bytes": 1000, **options}
    return [line async for line in read_lines(chunks(), **given)]


def said(record: bytes) -> Any:
    """What a line of an output or error file says."""
    return json.loads(record)
