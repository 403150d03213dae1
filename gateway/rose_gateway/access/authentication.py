"""Who calls: the API key of a request, and what is known of the request meanwhile."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from rose.protocol import Priority
from rose.web_access import is_loopback
from rose_gateway.access.keys import Keys
from rose_gateway.errors import ApiError
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
    anthropic: bool = False
    """it is one of Anthropic's API"""


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
        "no API key: send it as `Authorization: Bearer ...`, or as `x-api-key`"
        if secret is None
        else "this API key is not known, or was revoked",
        code="missing_api_key" if secret is None else "invalid_api_key",
        type="authentication_error",
        headers={"www-authenticate": "Bearer"},
    )
