"""Reads the body of a known caller before anything looks into it: at most so long, and so many.

An upload is too long for that. It is counted while its route reads it.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rose_gateway.errors import ApiError
from rose_gateway.http.request_context import RequestContext
from rose_gateway.http.sse import ClientGone
from rose_gateway.metrics import Metrics
from rose_gateway.turns import Turns

#: The one request whose body is a file.
UPLOAD = ("POST", "/v1/files")
#: What a form has beside its file.
_FORM_BYTES = 64 * 1024
#: What an upload holds in memory at the most, whatever its size.
_UPLOAD_HELD_BYTES = 8 * 1024 * 1024


class BodyLimit:
    """Replays the whole body in one message, so that parsing begins only after all checks."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        max_bytes: int,
        max_total_bytes: int,
        max_file_bytes: int = 0,
        turns: Turns | None = None,
    ) -> None:
        """`max_total_bytes`: of all bodies that are held at one time."""
        self._app = app
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._max_file_bytes = max_file_bytes
        self._turns = turns or Turns()
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            context: RequestContext = scope["request_context"]
            if context.caller is None:
                await self._app(scope, _unread, _closing(send) if _has_body(scope) else send)
            elif (scope["method"], scope["path"]) == UPLOAD:
                await self._pass_upload(scope, receive, send)
            else:
                await self._pass_body(scope, receive, send)
        except ApiError as error:
            await error.response()(scope, receive, send)

    async def _pass_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        context: RequestContext = scope["request_context"]
        self._check_headers(scope, self._max_bytes)
        try:
            body = await self._read(receive, context)
            await self._turns.take_for(len(body))
            await self._app(scope, _replayed(body, receive), send)
        finally:
            self._held_bytes -= context.received_bytes

    async def _pass_upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        context: RequestContext = scope["request_context"]
        limit = self._max_file_bytes + _FORM_BYTES
        self._check_headers(scope, limit)
        if self._held_bytes + _UPLOAD_HELD_BYTES > self._max_total_bytes:
            raise self._busy()
        whole = False

        async def counted() -> Message:
            nonlocal whole
            message = await receive()
            if message["type"] == "http.disconnect" and not whole:
                raise ClientGone
            context.received_bytes += len(message.get("body", b""))
            if context.received_bytes > limit:
                raise self._too_large(limit)
            whole = not message.get("more_body", False)
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and not whole:
                MutableHeaders(raw=message["headers"])["connection"] = "close"
            await send(message)

        self._held_bytes += _UPLOAD_HELD_BYTES
        try:
            await self._app(scope, counted, closing)
        finally:
            self._held_bytes -= _UPLOAD_HELD_BYTES

    def _check_headers(self, scope: Scope, limit: int) -> None:
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > limit:
                raise self._too_large(limit)
            if name == b"content-encoding" and value.lower() != b"identity":
                raise ApiError(
                    415,
                    f"content-encoding {value[:32].decode('latin-1')!r} is not read here: send the "
                    "body as it is",
                    code="unsupported_encoding",
                    headers={"connection": "close"},
                )

    async def _read(self, receive: Receive, context: RequestContext) -> bytes:
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            context.received_bytes += len(part)
            self._held_bytes += len(part)
            if context.received_bytes > self._max_bytes:
                raise self._too_large(self._max_bytes)
            if self._held_bytes > self._max_total_bytes:
                raise self._busy()
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)

    def _busy(self) -> ApiError:
        self._metrics.limit_hit("bodies")
        return ApiError(
            503,
            "the server holds as many request bodies as it can: try again",
            type="server_error",
            code="server_busy",
            headers={"connection": "close"},
            retry_after_s=1.0,
        )

    def _too_large(self, limit: int) -> ApiError:
        self._metrics.limit_hit("body")
        return ApiError(
            413,
            f"the body is longer than {limit} bytes, which is the limit",
            code="body_too_large",
            headers={"connection": "close"},  # the rest is not read
        )


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


async def _unread() -> Message:
    """Of a path that belongs to nobody."""
    return {"type": "http.request", "body": b"", "more_body": False}


def _closing(send: Send) -> Send:
    """The body is not read, so nothing can follow it."""

    async def close(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(raw=message["headers"])["connection"] = "close"
        await send(message)

    return close


def _replayed(body: bytes, receive: Receive) -> Receive:
    """First the body, then what comes: that the client has gone."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
