"""Who calls: the API key of a request, checked before its body is read, and its context."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rose.errors import RoseError
from rose.protocol import Priority
from rose.web_access import WebAccess, is_loopback
from rose_gateway.access.keys import Keys
from rose_gateway.errors import ApiError, api_error
from rose_gateway.settings import GatewaySettings, KeyLimits

_NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose jobs a request may see, and what it may ask for."""

    key_id: str = ""
    """"" where the gateway is open to all"""
    limits: KeyLimits = _NO_LIMITS
    tenant: str = ""
    """whose share its jobs come out of; "" for that of the gateway's setting, if it has one"""

    def may_use(self, model: str) -> bool:
        return self.limits.models is None or model in self.limits.models

    def may_have(self, priority: Priority) -> bool:
        return priority.level >= self.limits.max_priority.level


JOB_ID_HEADER = "x-rose-job-id"


@dataclass(slots=True)
class RequestContext:
    request_id: str
    caller: Caller | None = None
    """None: this path needs none"""
    job_id: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """further headers of the answer"""
    began_at: float = field(default_factory=time.perf_counter)
    status: int = 0
    """of the answer; 0 before it has begun"""
    received_bytes: int = 0
    sent_bytes: int = 0
    streaming: bool = False


_current: ContextVar[RequestContext] = ContextVar("request")


def enter_request(context: RequestContext) -> None:
    """For this task and those that it starts."""
    _current.set(context)


@contextmanager
def in_request(context: RequestContext) -> Iterator[None]:
    """As `enter_request`, while the block lasts: for work that came by no HTTP request."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def current_request() -> RequestContext:
    """Raises: LookupError: outside of a request."""
    return _current.get()


#: What is below this path belongs to somebody.
_GUARDED = "/v1/"


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
                        _bearer(headers), services.keys, services.settings
                    )
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
        return Caller(limits=keys.default_limits)
    raise ApiError(
        401,
        "no API key: send it as `Authorization: Bearer ...`"
        if secret is None
        else "this API key is not known, or was revoked",
        code="missing_api_key" if secret is None else "invalid_api_key",
        type="authentication_error",
        headers={"www-authenticate": "Bearer"},
    )


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


def _bearer(headers: Headers) -> str | None:
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


_BEARER = HTTPBearer(auto_error=False, description="An API key, as `rose keys create` prints it.")


async def _maker(request: Request, _: Annotated[object, Depends(_BEARER)]) -> Caller:
    """The middleware has found it; the scheme is for the OpenAPI document."""
    context: RequestContext = request.scope["request_context"]
    if context.caller is None:
        raise ApiError(401, "this path asks for no API key, so it has no caller")
    return context.caller


#: On whose behalf a request makes something. Its route counts it, with `Limits.take`.
MakerDependency = Annotated[Caller, Depends(_maker)]


async def _caller(request: Request, caller: MakerDependency) -> Caller:
    await request.app.state.services.jobs.limits.take_read(caller)
    return caller


#: On whose behalf any other request is served, which counts as a read.
CallerDependency = Annotated[Caller, Depends(_caller)]
