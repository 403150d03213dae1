"""Answers that take long: event streams, and requests that wait, while the client may go away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rose_gateway.access.authentication import RequestContext, current_request
from rose_gateway.errors import ApiError, ClientGone, api_error
from rose_gateway.http.error_answers import error_response
from rose_gateway.requests.parsing import compact

if TYPE_CHECKING:
    from rose_gateway.http.connections import StreamBody
    from rose_gateway.metrics import Metrics
    from rose_gateway.settings import GatewaySettings

T = TypeVar("T")

log = logging.getLogger("rose.gateway")

#: A comment, and an empty line for those who cut the stream there.
_HEARTBEAT = b": keep-alive\n\n"
#: Before what comes after it: `vllm bench serve` strips what it reads, so it would take the comment
#: and the next event for one.
_AFTER_HEARTBEAT = b":\n\n"
#: Where events have an `id:`. OpenAI's Python SDK remembers it, takes the empty line for the end of
#: another event, and fails to read that as JSON.
_HEARTBEAT_ALONE = b": keep-alive\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would keep the events back
}


def error_event(error: ApiError) -> bytes:
    """A data line that OpenAI's SDKs raise."""
    return f"data: {compact(error.body())}\n\n".encode("utf-8", "replace")


class EventStream(Response):
    """Writes chunks as they come. Each is one or more whole events and goes out in one write.

    Where the client does not keep up, nothing is read from `chunks`.
    """

    # Set when it is called
    _body: StreamBody
    _metrics: Metrics
    _context: RequestContext
    _loop: asyncio.AbstractEventLoop
    _send: Send

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        on_disconnect: Callable[[], Awaitable[object]] | None = None,
        error_chunk: Callable[[ApiError], bytes] = error_event,
        headers: Mapping[str, str] | None = None,
        heartbeat: bytes = b"",
        with_ids: bool = False,
        held: bool = False,
    ) -> None:
        """`chunks` is closed in any case. `on_disconnect`: the client has gone before the end.
        `error_chunk`: what is written last where `chunks` raises. `heartbeat`: what is written
        while nothing comes, if not a comment. `with_ids`: events have `id:` lines.
        `held`: the answer begins with the first chunk or heartbeat. What `chunks` raises before it
        is an answer with a status of its own, as OpenAI's API has it: its clients repeat, give up
        or ask another model by the status. Where `chunks` end before it, that is 204: an
        `EventSource` stops then."""
        self._chunks = chunks
        self._on_disconnect = on_disconnect
        self._error_chunk = error_chunk
        self._heartbeat, self._after_heartbeat = _HEARTBEAT, _AFTER_HEARTBEAT
        if heartbeat:
            self._heartbeat, self._after_heartbeat = heartbeat, b""
        elif with_ids:
            self._heartbeat, self._after_heartbeat = _HEARTBEAT_ALONE, b""
        self._separator = b""
        self._written_at = 0.0
        self._stalled = False
        self._held = held
        self._begun = False
        self._beginning = asyncio.Lock()
        self._instead: Response | None = None
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = scope["app"].state.services
        self._body, self._metrics = scope["stream_body"], services.metrics
        self._context, self._loop = current_request(), asyncio.get_running_loop()
        self._send = send
        self._body.begin()
        with services.metrics.open_streams.track_inprogress():
            gone = await self._serve(receive, services.settings)
        if self._instead is not None and not gone:
            await self._instead(scope, receive, send)
        if self._stalled:
            scope["abandon"]()  # a polite end would wait for the client, too
        if gone and self._on_disconnect is not None and not services.stopping.is_set():
            await self._on_disconnect()

    async def _serve(self, receive: Receive, settings: GatewaySettings) -> bool:
        """Returns whether the client has gone before the end."""
        writing = asyncio.create_task(self._write())
        watching = asyncio.create_task(
            self._watch(receive, settings.heartbeat_s, settings.write_timeout_s)
        )
        gone = await _ended_first(watching, writing)
        for task in (writing, watching):
            if not task.cancelled():
                task.result()
        return gone

    async def _write(self) -> None:
        async with aclosing(self._chunks) as chunks:
            if not self._held:
                await self._begin()
            try:
                async for chunk in chunks:
                    if not self._begun:
                        await self._begin()
                    if not self._put(self._separated(chunk)):
                        await self._body.flowing()
            except Exception as error:
                answer = api_error(error)
                if answer.status >= 500 and not isinstance(error, ApiError):
                    log.exception("a stream failed")
                if await self._replaced(error_response(answer)):
                    return
                self._put(self._separated(self._error_chunk(answer)))
        if not await self._replaced(Response(status_code=204)):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self) -> bool:
        """False: another answer has taken its place, and it never begins."""
        async with self._beginning:
            if not self._begun and self._instead is None:
                head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await self._send(head)
                self._begun = self._context.streaming = True
        return self._begun

    async def _replaced(self, instead: Response) -> bool:
        """Whether `instead` can still be the whole answer. It is sent when nobody else writes."""
        async with self._beginning:
            if not self._begun:
                self._instead = instead
        return not self._begun

    def _separated(self, chunk: bytes) -> bytes:
        separator, self._separator = self._separator, b""
        return separator + chunk

    def _put(self, data: bytes) -> bool:
        """False: the client does not keep up."""
        flows = self._body.write(data)
        self._context.sent_bytes += len(data)
        self._metrics.sent_bytes.value += len(data)
        self._written_at = self._loop.time()
        return flows

    async def _watch(self, receive: Receive, silence_s: float, patience_s: float) -> None:
        """Until the client has gone. Speaks up after `silence_s`, for those who close silent
        streams; a client that does not take that within `patience_s` counts as gone."""
        self._written_at = self._loop.time()
        while True:
            try:
                async with asyncio.timeout_at(self._written_at + silence_s):
                    if (await receive())["type"] == "http.disconnect":
                        return
            except TimeoutError:
                if self._loop.time() - self._written_at >= silence_s:
                    try:
                        async with asyncio.timeout(patience_s):
                            if await self._begin():
                                self._put(self._heartbeat)
                                self._separator = self._after_heartbeat
                                await self._body.flowing()
                            else:  # until `_write` has ended, too
                                self._written_at = self._loop.time()
                    except TimeoutError:
                        self._stalled = True
                        return


async def while_connected(
    request: Request,
    work: Coroutine[Any, Any, T],
    on_disconnect: Callable[[], Awaitable[object]] | None = None,
) -> T:
    """The result of `work`, for as long as the client waits for it.

    Raises:
        ClientGone: `work` is cancelled, and `on_disconnect` was awaited.
        what `work` raises.
    """
    working = asyncio.create_task(work)
    if await _ended_first(asyncio.create_task(_disconnected(request.receive)), working):
        if on_disconnect is not None and not request.app.state.services.stopping.is_set():
            await on_disconnect()
        raise ClientGone
    return working.result()


async def _ended_first(watching: asyncio.Task[Any], working: asyncio.Task[Any]) -> bool:
    """Whether `watching` ended while `working` went on. Both are awaited: nothing reads or writes
    for this client afterwards."""
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return not working.done()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
