"""Any job: its state, its events, its end."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from starlette.responses import Response

from rose.protocol import TERMINAL_STATUSES
from rose_gateway.access.authentication import JOB_ID_HEADER
from rose_gateway.answers.endpoint import ChoicesEndpoint
from rose_gateway.answers.rendering import Positions, streamed
from rose_gateway.chat.endpoint import ENDPOINT as CHAT
from rose_gateway.completions.endpoint import ENDPOINT as COMPLETION
from rose_gateway.http.sse import EventStream
from rose_gateway.jobs.job_answer import JobAnswer, job_answer
from rose_gateway.jobs.job_client import JobGroup
from rose_gateway.jobs.job_group import EndpointKind
from rose_gateway.messages import rendering as messages
from rose_gateway.openapi import FOLLOWED, stream_of
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import compact
from rose_gateway.responses import rendering
from rose_gateway.routes.dependencies import CallerDependency, ServicesDependency
from rose_gateway.services import Services

router = APIRouter(tags=["jobs"])

Events = AsyncGenerator[bytes, None]

_JobId = Annotated[str, Path(description="as x-rose-job-id names it")]


@router.get("/v1/jobs/{job_id}", summary="Retrieve the status of a job")
async def retrieve_job(
    job_id: _JobId,
    services: ServicesDependency,
    caller: CallerDependency,
    characters: Annotated[
        bool, Query(description="say for each worker at which character its text begins, too")
    ] = False,
) -> JobAnswer:
    group = await services.jobs.find(caller, job_id)
    return await job_answer(group, characters=characters)


@router.post("/v1/jobs/{job_id}/cancel", summary="Cancel a job")
async def cancel_job(
    job_id: _JobId, services: ServicesDependency, caller: CallerDependency
) -> JobAnswer:
    """One that waits ends at once, a running one within a step. One that has ended stays so."""
    group = await services.jobs.find(caller, job_id)
    await group.cancel()
    return await job_answer(group)


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="Follow the events of a job",
    response_class=EventStream,
    status_code=200,  # FastAPI would read it from the class
    responses={
        200: {
            "description": "The stream that its maker got or would have got, from the beginning or "
            "after an event. Of a job that did not come through here: its token events.",
            "content": {"text/event-stream": stream_of("as its endpoint has it")},
        },
        204: FOLLOWED,
    },
)
async def follow_job(
    job_id: _JobId,
    services: ServicesDependency,
    caller: CallerDependency,
    last_event_id: Annotated[
        str,
        Header(description="the `id:` of the last event that the reader has; wins over the query"),
    ] = "",
    from_query: Annotated[
        str,
        Query(alias="last_event_id", description="for those who cannot send the header"),
    ] = "",
) -> Response:
    group = await services.jobs.find(caller, job_id)
    last = last_event_id or from_query or None
    endpoint = None if group.record is None else group.record.endpoint
    events = await _FOLLOWERS[endpoint](services, group, last)
    if events is None:
        return Response(status_code=204)
    held = group.status in TERMINAL_STATUSES
    return EventStream(events, headers={JOB_ID_HEADER: group.id}, with_ids=True, held=held)


async def _choice_events(
    endpoint: ChoicesEndpoint[Any], services: Services, group: JobGroup, last: str | None
) -> Events | None:
    after = _after(group, last)
    if after is not None and after.all_done:
        return None
    chunks = await endpoint.chunks(services, group)
    return streamed(group, chunks, after)


async def _response_events(services: Services, group: JobGroup, last: str | None) -> Events:
    events = await rendering.events_of(services, group, _number(last))
    return rendering.streamed(group, events)


async def _plain_events(services: Services, group: JobGroup, last: str | None) -> Events | None:  # noqa: ARG001
    positions = _after(group, last) or Positions(len(group.jobs))
    return None if positions.all_ended else _plain(group, positions)


async def _plain(group: JobGroup, positions: Positions) -> Events:
    """The job's own events; `id:` is that of the log's entry."""
    async with aclosing(group.bursts()) as bursts:
        async for burst in bursts:
            lines = [
                f"id: {event.entry_id}\ndata: {compact(event.as_json())}\n\n"
                for choice, event in burst
                if positions.passes(choice, event)
            ]
            if lines:
                yield "".join(lines).encode()


async def _message_events(services: Services, group: JobGroup, last: str | None) -> Events:
    return messages.streamed(services, group, _number(last))


def _number(last: str | None) -> int:
    """Of the last event that the reader has, -1 if it has none. Raises: BadRequest"""
    if last is None:
        return -1
    if not (last.isascii() and last.isdigit() and len(last) <= 15):
        raise BadRequest(
            f"last_event_id: {last[:80]!r} must be the number of an event", "last_event_id"
        )
    return int(last)


_FOLLOWERS: dict[
    EndpointKind | None, Callable[[Services, JobGroup, str | None], Awaitable[Events | None]]
] = {
    "chat": partial(_choice_events, CHAT),
    "completion": partial(_choice_events, COMPLETION),
    "response": _response_events,
    "message": _message_events,
    "embedding": _plain_events,
    "embed": _plain_events,
    "rerank": _plain_events,
    "score": _plain_events,
    None: _plain_events,
}


def _after(group: JobGroup, last: str | None) -> Positions | None:
    return None if last is None else Positions.read(last, len(group.jobs))
