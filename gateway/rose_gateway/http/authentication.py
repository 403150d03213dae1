"""The API key of a request, checked before its body is read."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rose.errors import RoseError
from rose.web_access import WebAccess
from rose_gateway.access.authentication import RequestContext, identify
from rose_gateway.errors import ApiError, api_error
from rose_gateway.http.error_answers import error_response

#: Paths that begin so belong to somebody.
_GUARDED = ("/v1/", "/v2/", "/tokenize", "/detokenize", "/rerank", "/score")


class Authentication:
    """Middleware: refuses requests of foreign web pages, and one without a key where keys are asked
    for."""

    def __init__(self, app: ASGIApp, access: WebAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            context: RequestContext = scope["request_context"]
            headers = Headers(scope=scope)
            try:
                _check_web_access(self._access, scope, headers)
                if scope["path"].startswith(_GUARDED):
                    services = scope["app"].state.services
                    context.caller = await identify(
                        secret_of(headers), services.keys, services.settings
                    )
            except (ApiError, RoseError) as error:
                answer = api_error(error)
                answer.headers["connection"] = "close"  # the body is not read
                await error_response(answer)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _check_web_access(access: WebAccess, scope: Scope, headers: Headers) -> None:
    """Raises: ApiError: 403: a foreign page asks, or the server was asked by a foreign name."""
    local = (scope.get("server") or ("",))[0].removeprefix("::ffff:")
    foreign = access.foreign(headers, local)
    if foreign is None or (foreign == "sec-fetch-site" and _is_link(scope, headers)):
        return
    setting = "HOSTS" if foreign == "host" else "ORIGINS"
    raise ApiError(
        403,
        f"the {foreign} of this request, {headers[foreign][:128]!r}, is not one that this server "
        f"serves: name it in ROSE_GATEWAY_ALLOWED_{setting}",
        code="foreign_origin",
        type="permission_error",
    )


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Whether somebody follows a link from another site to the page, which shows nothing by
    itself."""
    return (
        scope["method"] in ("GET", "HEAD")
        and not scope["path"].startswith(_GUARDED)
        and headers.get("sec-fetch-mode") == "navigate"
    )


def secret_of(headers: Headers) -> str | None:
    """As OpenAI's clients send it, or as Anthropic's do."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
