"""The context of one request: what middleware, handlers and services tell each other of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from rose_gateway.access.caller import Caller

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
