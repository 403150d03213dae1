"""An HTTP client of a few lines, which tells each way in which an answer breaks off.

Each request has a connection of its own, so that a cut hits one answer.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

#: Heartbeats come more often. On a busy machine an answer may take long to begin, and a crowd of
#: clients that all try again keeps it busy.
_SILENCE_S = 30.0


class Disconnected(ConnectionError):
    """The answer broke off, or never came."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    id: str
    data: str


class Answer:
    def __init__(
        self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader
    ) -> None:
        self.status = status
        self.headers = headers
        """names in lower case"""
        self._reader = reader

    async def body(self) -> bytes:
        """Raises: Disconnected"""
        return b"".join([chunk async for chunk in self._chunks()])

    async def events(self) -> AsyncGenerator[ServerSentEvent, None]:
        """Whole events only. Raises: Disconnected"""
        rest = b""
        async for chunk in self._chunks():
            *frames, rest = (rest + chunk).split(b"\n\n")
            for frame in frames:
                if (event := _event(frame.decode())) is not None:
                    yield event

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        if self.headers.get("transfer-encoding") != "chunked":
            size = int(self.headers.get("content-length", "0"))
            yield await _read(self._reader.readexactly(size))
            return
        while size := int(await _read(self._reader.readuntil(b"\r\n")), 16):
            yield (await _read(self._reader.readexactly(size + 2)))[:-2]


@asynccontextmanager
async def send(
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
) -> AsyncGenerator[Answer, None]:
    """Leaving the context hangs up.

    Raises:
        Disconnected
    """
    raw = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(raw)}"]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        raise Disconnected("no connection") from error
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + raw)
        await _read(writer.drain())
        yield await _answer(reader)
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    first, *lines = (await _read(reader.readuntil(b"\r\n\r\n"))).decode().split("\r\n")[:-2]
    named = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in named}
    return Answer(int(first.split()[1]), headers, reader)


async def _read(reading: Any) -> Any:
    try:
        return await asyncio.wait_for(reading, _SILENCE_S)
    except TimeoutError as error:
        raise Disconnected("silence") from error
    except (OSError, EOFError) as error:
        raise Disconnected("cut") from error


def _event(frame: str) -> ServerSentEvent | None:
    """None for a comment."""
    fields = {"id": "", "data": ""}
    for line in frame.splitlines():
        name, _, value = line.partition(":")
        if name in fields:
            fields[name] = value.removeprefix(" ")
    return ServerSentEvent(fields["id"], fields["data"]) if fields["data"] else None
