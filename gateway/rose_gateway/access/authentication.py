"""Who calls: the API key of a request, checked before its body is read."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rose.errors import RoseError
from rose_gateway.access.caller import Caller as Caller
from rose_gateway.access.keys import Keys
from rose_gateway.access.loopback import is_loopback
from rose_gateway.errors import ApiError, api_error
from rose_gateway.http.request_context import RequestContext
from rose_gateway.settings import GatewaySettings

#: What is below this path belongs to somebody.
_GUARDED = "/v1/"


class Authentication:
    """Middleware: refuses a request without a key where keys are asked for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_GUARDED):
            context: RequestContext = scope["request_context"]
            services = scope["app"].state.services
            headers = Headers(scope=scope)
            try:
                context.caller = await identify(_bearer(headers), services.keys, services.settings)
                if not context.caller.key_id and not services.settings.open:
                    _check_local(headers)
            except (ApiError, RoseError) as error:
                answer = api_error(error)
                answer.headers["connection"] = "close"  # the body is not read
                await answer.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def identify(secret: str | None, keys: Keys, settings: GatewaySettings) -> Caller:
    """Who brings no key is let in where the gateway is open: on loopback that is so until the first
    key is made.

    Raises:
        ApiError: 401
        BrokerUnavailable
    """
    if secret is not None and (key := await keys.of_secret(secret)) is not None:
        return Caller(key.id, key.limits, key.tenant)
    if settings.open or (is_loopback(settings.host) and not await keys.exist()):
        return Caller()
    raise ApiError(
        401,
        "no API key: send it as `Authorization: Bearer ...`"
        if secret is None
        else "this API key is not known, or was revoked",
        code="missing_api_key" if secret is None else "invalid_api_key",
        type="authentication_error",
        headers={"www-authenticate": "Bearer"},
    )


def _check_local(headers: Headers) -> None:
    """A gateway that asks for no key on loopback is for programs of this machine. A browser here
    also carries requests of any page that it shows, which say so by `Origin`, or by a `Host` where
    a foreign name was bent to this address.

    Raises: ApiError: 403
    """
    for header in ("host", "origin"):
        value = headers.get(header)
        if value is not None and not _names_loopback(value):
            raise ApiError(
                403,
                f"without an API key this server is for programs of its own machine, and the "
                f"{header} of this request is another: make a key (rose keys create NAME), or say "
                "ROSE_GATEWAY_OPEN=true to serve everybody",
                code="foreign_origin",
                type="permission_error",
            )


def _names_loopback(origin: str) -> bool:
    """Of the value of an Origin or a Host."""
    try:
        name = urlsplit(origin if "//" in origin else f"//{origin}").hostname
    except ValueError:
        return False
    return name is not None and is_loopback(name)


def _bearer(headers: Headers) -> str | None:
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


_BEARER = HTTPBearer(auto_error=False, description="An API key, as `rose keys create` prints it.")


async def _caller(request: Request, _: Annotated[object, Depends(_BEARER)]) -> Caller:
    """The middleware has found it; the scheme is for the OpenAPI document."""
    context: RequestContext = request.scope["request_context"]
    if context.caller is None:
        raise ApiError(401, "this path asks for no API key, so it has no caller")
    return context.caller


CallerDependency = Annotated[Caller, Depends(_caller)]
