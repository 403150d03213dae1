"""The answer that is a file: written as its reader takes it."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import quote

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rose.errors import RoseError
from rose_gateway.http.sse import while_connected
from rose_gateway.services import Services

log = logging.getLogger("rose.gateway")


class Download(Response):
    media_type = "application/octet-stream"

    def __init__(self, content: AsyncGenerator[bytes, None], *, size: int, filename: str) -> None:
        """`content` is closed in any case."""
        self._content = content
        self.status_code = 200
        self.background = None
        self.init_headers(
            {
                "content-length": str(size),
                "content-disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
                # Whoever uploads it chooses the content: no browser may take it for a page.
                "x-content-type-options": "nosniff",
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: ApiError, FileGone, StorageUnavailable: the answer has not begun."""
        services: Services = scope["app"].state.services
        async with aclosing(self._content) as content:
            with services.files.downloads.slot(services.metrics):
                first = await anext(content, b"")
                try:
                    writing = self._write(send, first, content, services.settings.write_timeout_s)
                    await while_connected(Request(scope, receive), writing)
                except (RoseError, TimeoutError) as error:
                    # That the answer is cut off is all that its reader can still be told.
                    why = error or "its reader takes nothing"
                    log.warning("a download was broken off: %s", why)
                    if (abandon := scope.get("abandon")) is not None:
                        abandon()

    async def _write(
        self, send: Send, first: bytes, rest: AsyncGenerator[bytes, None], patience_s: float
    ) -> None:
        """Raises: TimeoutError, FileGone, StorageUnavailable"""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _sent(send, first, patience_s)
        async for chunk in rest:
            await _sent(send, chunk, patience_s)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _sent(send: Send, chunk: bytes, patience_s: float) -> None:
    async with asyncio.timeout(patience_s):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
