"""A client of the gateway that costs next to nothing: a socket that counts events in the bytes.

OpenAI's SDKs spend several times as much on an event as the gateway does: with them one would
measure the SDK.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

_EVENT, _DONE = b"data: {", b"data: [DONE]"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_HEADERS_END = b"\r\n\r\n"

#: The last chunk, with the usage, is shorter.
_TAIL_BYTES = 4096


@dataclass(slots=True)
class StreamTimes:
    """One stream, as its reader saw it. Times of `time.perf_counter`."""

    began: float
    first: float
    """first event"""
    last: float
    events: int
    """with the one that has the usage"""
    tokens: int


class GatewaySocket(asyncio.BufferedProtocol):
    """A connection that is kept for the next request."""

    #: Of all sockets: what one has received is counted before the next one receives.
    _buffer = bytearray(256 * 1024)

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def open(cls, url: str, headers: str = "") -> GatewaySocket:
        """`url`: the base URL for OpenAI's SDKs. `headers`: more of them, each with its end."""
        address = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, socket = await loop.create_connection(cls, address.hostname or "", address.port or 80)
        socket._head = (
            f"POST {address.path}/completions HTTP/1.1\r\nhost: {address.netloc}\r\n"
            f"content-type: application/json\r\n{headers}"
        )
        return socket

    _head = ""

    async def stream(self, model: str, prompt: str, new_tokens: int) -> StreamTimes:
        """Raises: RuntimeError: the gateway refuses, or ends the stream before its end."""
        self.send(model, prompt, new_tokens)
        return await self.ended()

    def send(self, model: str, prompt: str, new_tokens: int) -> None:
        """Ask for a stream; `opened` and `ended` say what becomes of it."""
        body = json.dumps(
            {
                "model": model,
                "prompt": prompt,
                "max_tokens": new_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._done: asyncio.Future[StreamTimes] = self._loop.create_future()
        self._events, self._first, self._tail = 0, 0.0, b""
        assert self._transport is not None  # noqa: S101 - connected
        self._began = time.perf_counter()
        self._transport.write(f"{self._head}content-length: {len(body)}\r\n\r\n".encode() + body)

    async def opened(self) -> None:
        """The gateway has answered that it streams. Raises: as `stream`"""
        await self._opened

    async def ended(self) -> StreamTimes:
        """Raises: as `stream`"""
        return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's
        """A protocol without a buffer of its own gets a new one of 256 KiB for each event."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        # A mark may be cut in two by the end of what was read.
        seam = len(self._tail)
        text = self._tail + self._buffer[:nbytes]
        if not self._opened.done() and not self._open(text):
            self._tail = text
            return
        start = max(0, seam - len(_EVENT) + 1)
        events = text.count(_EVENT, start)
        if events and not self._events:
            self._first = time.perf_counter()
        self._events += events
        self._tail = text[-_TAIL_BYTES:]
        if _DONE in self._tail and self._tail.endswith(b"\r\n0\r\n\r\n"):
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the gateway has closed the connection: {error or 'before the end'}")

    def _open(self, text: bytes) -> bool:
        if _HEADERS_END not in text:
            return False
        status = _STATUS.match(text)
        if status is None or status[1] != b"200":
            self._fail(f"the gateway answers {text[:800].decode(errors='replace')}")
        elif not self._opened.done():
            self._opened.set_result(None)
        return True

    def _finish(self) -> None:
        usage = _TOKENS.findall(self._tail)
        if not usage:
            self._fail(f"the stream ends without its usage: {self._tail[-800:]!r}")
        elif not self._done.done():
            last = time.perf_counter()
            self._done.set_result(
                StreamTimes(self._began, self._first, last, self._events, int(usage[-1]))
            )

    def _fail(self, reason: str) -> None:
        futures: list[asyncio.Future[Any]] = [
            future
            for name in ("_opened", "_done")
            if (future := getattr(self, name, None)) is not None
        ]
        for future in futures:
            if not future.done():
                future.set_exception(RuntimeError(reason))
                future.exception()  # somebody may wait for the other one alone
