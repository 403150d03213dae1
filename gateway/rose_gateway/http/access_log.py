"""Around every request: its id, its line in the log, its metrics, and an answer if it fails.

A line has neither the query nor a header nor the body: they may hold prompts and secrets.
"""

import asyncio
import logging
import re
import secrets
import time
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rose_gateway.errors import api_error
from rose_gateway.http.request_context import RequestContext, enter_request
from rose_gateway.http.sse import ClientGone
from rose_gateway.metrics import Metrics

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
        context = RequestContext(_request_id(scope))
        enter_request(context)
        scope["request_context"] = context

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                headers["x-request-id"] = context.request_id
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
            await api_error(error).response()(scope, receive, send)

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
