"""What routes take as parameters: the services, the caller, a request for text, a limit."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Header, Query, Request
from fastapi.security import APIKeyHeader, HTTPBearer

from rose_gateway.access.authentication import Caller, RequestContext
from rose_gateway.answers.endpoint import IncomingRequest, callers_key, session_of
from rose_gateway.errors import ApiError
from rose_gateway.services import Services


async def _services(request: Request) -> Services:  # FastAPI would run a plain function in a thread
    services: Services = request.app.state.services
    return services


ServicesDependency = Annotated[Services, Depends(_services)]

#: How many items a page of a list has at the most.
Limit = Annotated[int, Query(ge=1, le=100)]

_BEARER = HTTPBearer(auto_error=False, description="An API key, as `rose keys create` prints it.")
_API_KEY = APIKeyHeader(
    name="x-api-key", auto_error=False, description="The same, as Anthropic's clients send it."
)


async def _maker(
    request: Request,
    _: Annotated[object, Depends(_BEARER)],
    __: Annotated[object, Depends(_API_KEY)],
) -> Caller:
    """The middleware has found it; the schemes are for the OpenAPI document."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingHttpRequest(IncomingRequest):
    """One that came by HTTP, and what becomes of the job if the client goes away."""

    request: Request

    @property
    def resumes(self) -> bool:
        """Whether the client wants `id:` lines. Many clients of OpenAI's streams, which have none,
        take `data: ` from the beginning of an event and read the rest as JSON."""
        return self.continues or "text/event-stream" in self.request.headers.get("accept", "")


async def _incoming(
    request: Request,
    services: ServicesDependency,
    caller: MakerDependency,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="the same key with the same body again brings the first job, and its "
            "client may go away and come back",
        ),
    ] = None,
    x_rose_on_disconnect: Annotated[
        Literal["cancel", "continue", "auto"],
        Header(
            description="what becomes of the job if the client goes away before its end: cancel, "
            "or continue, by which the events of a stream get `id:` lines too; auto is continue "
            "where there is an Idempotency-Key, else cancel",
        ),
    ] = "auto",
) -> IncomingHttpRequest:
    continues = x_rose_on_disconnect == "continue" or (
        x_rose_on_disconnect == "auto" and idempotency_key is not None
    )
    body = await request.body()
    return IncomingHttpRequest(
        services=services,
        caller=caller,
        body=body,
        sha256=hashlib.sha256(body).hexdigest(),
        idempotency_key=None if idempotency_key is None else callers_key(caller, idempotency_key),
        session=session_of(request.headers),
        request=request,
        continues=continues,
    )


HttpRequestDependency = Annotated[IncomingHttpRequest, Depends(_incoming)]
