"""Pages of other origins may read answers, where the setting names their origin (CORS)."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rose.web_access import WebAccess

#: What a page may read beside what every page may.
_EXPOSED = (
    *("retry-after", "retry-after-ms", "x-should-retry", "x-request-id", "request-id"),
    *("x-rose-job-id", "x-rose-job-status", "x-rose-warning", "content-disposition", "etag"),
    *("stream-next-offset", "stream-up-to-date", "stream-closed", "stream-cursor"),
)
_METHODS = "GET, HEAD, POST, DELETE"
#: How long a browser need not ask again.
_MAX_AGE_S = 600


class CrossOrigin:
    """Middleware. A key travels in a header that a page sets: there are no cookies to share."""

    def __init__(self, app: ASGIApp, access: WebAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        origin = headers.get("origin")
        if origin is None or not self._access.shares_with(origin):
            await self._app(scope, receive, send)
            return
        wanted = headers.get("access-control-request-headers", "")
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _preflight(origin, wanted)(scope, receive, send)
            return

        async def shared(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(raw=message["headers"])
                answer["access-control-allow-origin"] = origin
                answer["access-control-expose-headers"] = ", ".join(_EXPOSED)
                answer.add_vary_header("Origin")
            await send(message)

        await self._app(scope, receive, shared)


def _preflight(origin: str, wanted: str) -> Response:
    headers = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": _METHODS,
        "access-control-max-age": str(_MAX_AGE_S),
        "vary": "Origin",
    }
    if wanted:
        headers["access-control-allow-headers"] = wanted
    return Response(status_code=204, headers=headers)
