"""A request that makes a job, as HTTP brings it, and the delivery of its answer."""

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Header, Request
from starlette.responses import JSONResponse, Response

from rose_gateway.access.authentication import MakerDependency
from rose_gateway.answers.rendering import Chunks, Collector, collected, streamed
from rose_gateway.errors import ApiError
from rose_gateway.http.sse import EventStream, while_connected
from rose_gateway.jobs.jobs import JobGroup
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.incoming_request import IncomingRequest, callers_key
from rose_gateway.services import ServicesDependency


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingHttpRequest(IncomingRequest):
    """One that came by HTTP, and what becomes of the job if the client goes away."""

    request: Request
    continues: bool
    """the job goes on although the client has gone"""

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
        request=request,
        continues=continues,
    )


HttpRequestDependency = Annotated[IncomingHttpRequest, Depends(_incoming)]


def check_kept(incoming: IncomingHttpRequest, store: bool | None) -> None:
    """Raises: BadRequest: what is not stored cannot go on without its client."""
    if store is False and incoming.continues and incoming.idempotency_key is None:
        raise BadRequest(
            "store: false deletes the job with its client, so x-rose-on-disconnect cannot be "
            "continue",
            "store",
        )


async def delivered(
    incoming: IncomingHttpRequest, group: JobGroup, output: Chunks | Collector
) -> Response:
    """The answer to a request, as a stream or as a whole.

    Raises: ApiError, ClientGone, JobNotFound, BrokerUnavailable
    """
    gone = when_gone(incoming, group)
    if isinstance(output, Collector):
        work = collected(group, output)
        async with delivery(group):
            answer = await while_connected(incoming.request, work, on_disconnect=gone)
        return JSONResponse(answer)
    # Who means to come back is told the job at once.
    held = not incoming.continues
    chunks = streamed(group, output, with_ids=incoming.resumes, held=held)
    return EventStream(
        kept(chunks, group), on_disconnect=gone, with_ids=incoming.resumes, held=held
    )


def when_gone(
    incoming: IncomingHttpRequest, group: JobGroup
) -> Callable[[], Awaitable[object]] | None:
    """What happens if the client goes away before the end."""
    if incoming.continues:
        return None
    return group.cancel if group.own_record.store else group.delete


@asynccontextmanager
async def delivery(group: JobGroup) -> AsyncGenerator[None, None]:
    """What is not to be stored is deleted at the end, be it the answer or why there is none. A
    client that goes away before, and a Redis that does, end nothing."""
    store = group.own_record.store
    try:
        yield
    except ApiError:
        if not store:
            await group.delete()
        raise
    if not store:
        await group.delete()


async def kept(chunks: AsyncGenerator[bytes, None], group: JobGroup) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream, as its delivery."""
    async with delivery(group), aclosing(chunks):
        async for data in chunks:
            yield data
