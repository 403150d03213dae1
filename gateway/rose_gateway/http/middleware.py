"""What each request passes: its line in the log, and the bounds of its body."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Container
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rose_gateway.access.authentication import RequestContext, enter_request
from rose_gateway.errors import ApiError, ClientGone, api_error
from rose_gateway.http.encodings import ENCODINGS, unpacked
from rose_gateway.http.error_answers import error_response, is_anthropic
from rose_gateway.metrics import Metrics
from rose_gateway.pacing import LoopPacer
from rose_gateway.requests.bad_request import BadRequest

log = logging.getLogger("rose.gateway.access")
_errors = logging.getLogger("rose.gateway")

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
#: Asked for every few seconds by whoever watches: not worth a line.
_PROBES = ("/health", "/healthz", "/readyz", "/metrics", "/v1/status", "/v1/jobs/{job_id}")
#: nginx' status for a client that has gone. Nobody sees it but this log.
_CLIENT_GONE = 499


class AccessLog:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext(_request_id(scope), anthropic=is_anthropic(scope["path"]))
        enter_request(context)
        scope["request_context"] = context

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                headers["x-request-id"] = context.request_id
                if context.anthropic:
                    headers["request-id"] = context.request_id
                for name, value in context.headers.items():
                    headers[name] = value
                began = time.perf_counter() - context.began_at
                self._metrics.started(*_method_and_route(scope), began)
            elif message["type"] == "http.response.body":
                size = len(message.get("body", b""))  # of a stream's end; it counts the others
                context.sent_bytes += size
                self._metrics.sent_bytes.value += size
            await send(message)

        try:
            await self._answered(scope, receive, count, context)
        finally:
            self._note(scope, context)

    async def _answered(
        self, scope: Scope, receive: Receive, send: Send, context: RequestContext
    ) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            context.status = _CLIENT_GONE
        except asyncio.CancelledError:
            context.status = context.status or _CLIENT_GONE
            raise
        except Exception as error:
            _errors.exception("%s %s failed", *_method_and_route(scope))
            if context.status:
                raise
            await error_response(api_error(error))(scope, receive, send)

    def _note(self, scope: Scope, context: RequestContext) -> None:
        method, route = _method_and_route(scope)
        self._metrics.answered(method, route, context.status)
        self._metrics.received_bytes.inc(context.received_bytes)
        if route in _PROBES and context.status == 200:
            return
        took_ms = (time.perf_counter() - context.began_at) * 1000
        fields: dict[str, Any] = {
            "method": method,
            "route": route,
            "status": context.status,
            "ms": round(took_ms, 1),
            "received_bytes": context.received_bytes,
            "sent_bytes": context.sent_bytes,
            "request": context.request_id,
        }
        if context.caller is not None and context.caller.key_id:
            fields["key"] = context.caller.key_id
        if context.job_id:
            fields["job"] = context.job_id
        words = " ".join(f"{name}={value}" for name, value in list(fields.items())[3:])
        log.info("%s %s %d %s", method, route, context.status, words, extra={"fields": fields})


def _method_and_route(scope: Scope) -> tuple[str, str]:
    """As the router knows them: a client may send any word for either."""
    route = getattr(scope.get("route"), "path", "other")
    method: str = scope["method"]
    return method if method in _METHODS else "other", route


def _request_id(scope: Scope) -> str:
    """That of a proxy in front, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            given: str = value.decode()
            return given
    return f"req_{secrets.token_hex(16)}"


#: The one request whose body is a file.
UPLOAD = ("POST", "/v1/files")
#: What a form has beside its file.
_FORM_BYTES = 64 * 1024
#: What an upload holds in memory at the most, whatever its size.
_UPLOAD_HELD_BYTES = 8 * 1024 * 1024


#: Pieces of a compressed body that are unpacked at a time.
_PIECES_OF_A_TURN = 16


class _Held:
    """Bytes that one request holds."""

    size = 0


class BodyLimit:
    """Replays the whole body in one message, so that parsing begins only after all checks."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        max_bytes: int,
        max_total_bytes: int,
        max_file_bytes: int = 0,
        pacer: LoopPacer | None = None,
    ) -> None:
        """`max_total_bytes`: of all bodies that are held at one time."""
        self._app = app
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._max_file_bytes = max_file_bytes
        self._pacer = pacer or LoopPacer()
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
            await error_response(error)(scope, receive, send)

    async def _pass_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        context: RequestContext = scope["request_context"]
        encoding = self._check_headers(scope, self._max_bytes, ENCODINGS)
        held = _Held()
        scope["body_store"] = self
        try:
            body = await self._read(receive, context, held)
            if encoding:
                body = await self._unpacked(body, encoding, held)
            if scope["method"] == "GET":  # hundreds may come at once, of answers that are long
                await self._pacer.wait()
            else:
                await self._pacer.wait_for(len(body))
            await self._app(scope, _replayed(body, receive), send)
        finally:
            self._held_bytes -= held.size

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

    def _check_headers(self, scope: Scope, limit: int, encodings: Container[str] = ()) -> str:
        """The encoding of the body; "" if it comes as it is. Raises: ApiError"""
        encoding = ""
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > limit:
                raise self._too_large(limit)
            if name == b"content-encoding" and value.lower() != b"identity":
                given = value[:32].decode("latin-1").lower().strip()
                if encoding or given not in encodings:
                    raise ApiError(
                        415,
                        f"content-encoding {given!r} is not read here: send the body as it is"
                        + (", in gzip or in zstd" if encodings else ""),
                        code="unsupported_encoding",
                        headers={"connection": "close"},
                    )
                encoding = given
        return encoding

    async def _read(self, receive: Receive, context: RequestContext, held: "_Held") -> bytes:
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            context.received_bytes += len(part)
            self._hold(len(part), held)
            if context.received_bytes > self._max_bytes:
                raise self._too_large(self._max_bytes)
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _unpacked(self, body: bytes, encoding: str, held: "_Held") -> bytes:
        """Under the same limits. Raises: ApiError"""
        parts: list[bytes] = []
        size = 0
        try:
            for part in unpacked(body, encoding):
                size += len(part)
                if size > self._max_bytes:
                    raise self._too_large(self._max_bytes)
                self._hold(len(part), held)
                parts.append(part)
                if len(parts) % _PIECES_OF_A_TURN == 0:
                    await self._pacer.wait()
        except BadRequest as error:
            raise api_error(error) from None
        return b"".join(parts)

    def _hold(self, size: int, held: "_Held") -> None:
        """Raises: ApiError: there is no room for it."""
        held.size += size
        self._held_bytes += size
        if self._held_bytes > self._max_total_bytes:
            raise self._busy()

    def hold(self, size: int) -> None:
        """For what comes later on the same connection. Raises: ApiError: there is no room for
        it, and it is not counted."""
        if self._held_bytes + size > self._max_total_bytes:
            raise self._busy()
        self._held_bytes += size

    def release(self, size: int) -> None:
        self._held_bytes -= size

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
