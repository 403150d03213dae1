"""How the answer to a request for text goes out, and what becomes of its job if the client goes."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal

from starlette.responses import JSONResponse, Response

from rose.protocol import FinishedEvent
from rose_gateway.answers.endpoint import ChoicesEndpoint
from rose_gateway.answers.prompt_tokens import prompt_tokens
from rose_gateway.answers.rendering import Chunks, Collector, collected, streamed
from rose_gateway.errors import ApiError
from rose_gateway.http.sse import EventStream, while_connected
from rose_gateway.jobs.job_client import JobGroup, Submission
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.routes.dependencies import IncomingHttpRequest


async def respond(
    endpoint: ChoicesEndpoint[Any], incoming: IncomingHttpRequest, request: Any
) -> Response:
    """Raises: BadRequest, ApiError, ClientGone, JobNotFound, BrokerUnavailable"""
    check_kept(incoming, request.store)
    submission = await endpoint.make_submission(incoming, request)
    group = await incoming.services.jobs.submit(incoming.caller, submission)
    is_stream = endpoint.parameters(group.own_record.request).stream
    make = endpoint.chunks if is_stream else endpoint.collector
    return await _delivered(incoming, group, await make(incoming.services, group))


async def prompt_counted(
    incoming: IncomingHttpRequest,
    submission: Submission,
    wanted: Literal["count", "ids"] = "count",
) -> FinishedEvent:
    """As `prompt_tokens`, as long as the client is there. Raises: as that; ClientGone"""
    counting = prompt_tokens(incoming.services, incoming.caller, submission, wanted)
    return await while_connected(incoming.request, counting)


def check_kept(incoming: IncomingHttpRequest, store: bool | None) -> None:
    """Raises: BadRequest: what is not stored cannot go on without its client."""
    if store is False and incoming.continues and incoming.idempotency_key is None:
        raise BadRequest(
            "store: false deletes the job with its client, so x-rose-on-disconnect cannot be "
            "continue",
            "store",
        )


async def _delivered(
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
