"""Responses: created, retrieved, followed, cancelled, deleted; their input items."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from starlette.responses import JSONResponse, Response

from rose.errors import JobNotFound
from rose.protocol import TERMINAL_STATUSES
from rose_gateway.access.authentication import Caller
from rose_gateway.errors import ApiError
from rose_gateway.http.error_answers import unknown_url
from rose_gateway.http.sse import EventStream, while_connected
from rose_gateway.jobs.job_client import JobGroup
from rose_gateway.openapi import FOLLOWED, answer_of, body_of
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.responses import rendering, submission
from rose_gateway.responses.compaction import (
    CompactedResponse,
    CompactResponse,
    compacted,
    summary_request,
)
from rose_gateway.responses.events import ResponseEvents, error_frame, job_id_of
from rose_gateway.responses.items import shown_input
from rose_gateway.responses.rendering import (
    DeletedResponse,
    InputTokens,
    ItemList,
    ResponseObject,
)
from rose_gateway.responses.schema import UNSUPPORTED, CreateResponse, Includable
from rose_gateway.responses.submission import check_together
from rose_gateway.routes.delivery import check_kept, delivery, kept, prompt_counted, when_gone
from rose_gateway.routes.dependencies import (
    CallerDependency,
    HttpRequestDependency,
    IncomingHttpRequest,
    Limit,
    ServicesDependency,
)
from rose_gateway.services import Services

router = APIRouter(prefix="/v1/responses", tags=["responses"])

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

#: How long a cancellation waits for the worker to stop, which takes it a step.
_CANCEL_WAIT_S = 10.0

#: `{"stream":true}` with some space.
_MAX_STREAM_BODY = 1024

_EVENTS = "response.* events in the order of their sequence_number, then [DONE]"

ResponseId = Annotated[str, Path(max_length=128, description="resp_...")]
_Include = Annotated[
    list[Includable] | None,
    Query(max_length=64, description="accepted; changes nothing"),
]
_BracketInclude = Annotated[
    list[Includable] | None,
    # include, as SDKs write it: generators of clients would give both the same name
    Query(max_length=64, alias="include[]", include_in_schema=False),
]


async def _stream_wanted(
    request: Request,
    stream: Annotated[bool, Query(description="its events, from the first one on")] = False,
) -> bool:
    """OpenAI's library for Go says it in a body, `{"stream":true}`, and not in the query."""
    if stream:
        return True
    given = await request.body()  # that of a GET may be anything
    with suppress(ValueError, RecursionError):
        body = json.loads(given[:_MAX_STREAM_BODY])
        return isinstance(body, dict) and body.get("stream") is True
    return False


_StreamDependency = Annotated[bool, Depends(_stream_wanted)]


@router.post(
    "",
    summary="Create a response",
    openapi_extra=body_of(CreateResponse),
    responses=answer_of(ResponseObject, stream=_EVENTS),
    response_model=None,
)
async def create_response(incoming: HttpRequestDependency) -> Response:
    """Waits for the answer or streams it; with `background` it answers at once. A client that goes
    away cancels what is not in the background, unless `x-rose-on-disconnect` says continue."""
    request = incoming.parsed(CreateResponse, UNSUPPORTED)
    check_together(request)
    check_kept(incoming, request.store)
    group = await incoming.services.jobs.submit(
        incoming.caller, await submission.make_submission(incoming, request)
    )
    return await _delivered(incoming, group, request)


@router.post(
    "/input_tokens",
    summary="Count the tokens of a response's input",
    openapi_extra=body_of(CreateResponse),
    responses=answer_of(InputTokens),
    response_model=None,
)
async def count_input_tokens(incoming: HttpRequestDependency) -> Response:
    """Exactly: a worker applies the chat template and the tokenizer, and generates nothing."""
    request = incoming.parsed(CreateResponse, UNSUPPORTED)
    asked = await submission.make_submission(incoming, request)
    event = await prompt_counted(incoming, asked)
    return JSONResponse(InputTokens(input_tokens=event.prompt_tokens).model_dump())


@router.post(
    "/compact",
    summary="Make a conversation short",
    openapi_extra=body_of(CompactResponse),
    responses=answer_of(CompactedResponse),
    response_model=None,
)
async def compact_response(incoming: HttpRequestDependency) -> Response:
    """The model writes a summary. The answer's output is the input of the next request."""
    request = incoming.parsed(CompactResponse)
    made = await submission.make_submission(incoming, summary_request(request))
    group = await incoming.services.jobs.submit(incoming.caller, made)
    events = await rendering.events_of(incoming.services, group)
    async with delivery(group):
        response = await while_connected(
            incoming.request, rendering.answered(group, events), on_disconnect=group.delete
        )
        before = await incoming.services.conversations.before(group.own_record.link)
        return JSONResponse(compacted(before.items, group, response).model_dump())


@router.api_route("/compact", methods=_METHODS, include_in_schema=False)
@router.api_route("/input_tokens", methods=_METHODS, include_in_schema=False)
async def not_here(request: Request) -> Response:
    """They would be taken for the ids of responses."""
    raise unknown_url(request)


@router.get(
    "/{response_id}",
    summary="Retrieve a response, or follow its events",
    responses={**answer_of(ResponseObject, stream=_EVENTS), 204: FOLLOWED},
    response_model=None,
)
async def retrieve_response(
    response_id: ResponseId,
    services: ServicesDependency,
    caller: CallerDependency,
    stream: _StreamDependency,
    starting_after: Annotated[
        int | None,
        Query(ge=0, le=2**53, description="with stream: only events with higher numbers"),
    ] = None,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=2**53, description="as starting_after, which goes before it")
    ] = None,
    include_obfuscation: Annotated[
        bool | None, Query(description="accepted; streams carry no padding")
    ] = None,
    include: _Include = None,
    include_brackets: _BracketInclude = None,
) -> Response:
    """A response that goes on comes with its output so far. Whoever follows one may leave without
    consequences, and come back after the last number that it has."""
    del include_obfuscation, include, include_brackets
    if starting_after is not None and not stream:
        raise BadRequest("starting_after: only together with stream=true", "starting_after")
    group = await _found(services, caller, response_id)
    if not stream:
        events = await rendering.events_of(services, group)
        return JSONResponse(await rendering.current(group, events))
    after = last_event_id if starting_after is None else starting_after
    events = await rendering.events_of(services, group, -1 if after is None else after)
    frames = rendering.streamed(group, events)
    return _stream(frames, events, held=group.status in TERMINAL_STATUSES)


@router.delete("/{response_id}", summary="Delete a response", response_model=DeletedResponse)
async def delete_response(
    response_id: ResponseId, services: ServicesDependency, caller: CallerDependency
) -> DeletedResponse:
    """It cannot be retrieved any more; one that still goes on is cancelled."""
    group = await _found(services, caller, response_id)
    await group.delete()
    return DeletedResponse(id=response_id)


@router.post(
    "/{response_id}/cancel",
    summary="Cancel a background response",
    responses=answer_of(ResponseObject),
    response_model=None,
)
async def cancel_response(
    response_id: ResponseId, services: ServicesDependency, caller: CallerDependency
) -> Response:
    """Answers with the response as it ended: a repeat, or one that comes too late, does no harm."""
    group = await _found(services, caller, response_id)
    if not group.own_record.background:
        raise BadRequest(
            "only a background response can be cancelled: close the connection of another one",
            "response_id",
        )
    if group.status not in TERMINAL_STATUSES:
        await group.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_WAIT_S):
                await rendering.ended(group, await rendering.events_of(services, group))
        await group.refresh()
    return JSONResponse(await rendering.current(group, await rendering.events_of(services, group)))


@router.get("/{response_id}/input_items", summary="List the input of a response")
async def list_input_items(
    response_id: ResponseId,
    services: ServicesDependency,
    caller: CallerDependency,
    after: Annotated[
        str | None, Query(max_length=256, description="the id of an item: those that follow it")
    ] = None,
    limit: Limit = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="desc: the newest first")] = "desc",
    include: _Include = None,
    include_brackets: _BracketInclude = None,
) -> ItemList:
    """All that the model was given: with previous_response_id, inputs and outputs before it too."""
    del include, include_brackets
    group = await _found(services, caller, response_id)
    before = await services.conversations.before(group.own_record.link)
    items = (*before.items, *shown_input(rendering.parameters_of(group), group.id))
    if order == "desc":
        items = items[::-1]
    return ItemList.after(items, after, limit, "the input has no item with this id")


async def _found(services: Services, caller: Caller, given: str) -> JobGroup:
    """Raises: ApiError: 404"""
    try:
        return await services.jobs.find(caller, job_id_of(given), "response")
    except JobNotFound:
        raise ApiError(
            404,
            f"there is no response {given[:128]!r}: it was never created, was deleted, was not to "
            "be stored, or has expired",
            param="response_id",
            code="not_found",
        ) from None


async def _delivered(
    incoming: IncomingHttpRequest, group: JobGroup, request: CreateResponse
) -> Response:
    """The answer to whoever has created it."""
    gone = None if request.background else when_gone(incoming, group)
    if request.stream:
        events = await rendering.events_of(incoming.services, group, -1)
        frames = kept(rendering.streamed(group, events), group)
        return _stream(frames, events, on_disconnect=gone)
    events = await rendering.events_of(incoming.services, group)
    if request.background:
        return JSONResponse(await rendering.current(group, events))
    work = rendering.answered(group, events)
    async with delivery(group):
        response = await while_connected(incoming.request, work, on_disconnect=gone)
    return JSONResponse(response)


def _stream(
    frames: AsyncGenerator[bytes, None], events: ResponseEvents, **options: Any
) -> EventStream:
    def broken_off(error: ApiError) -> bytes:
        return error_frame(events.last_number, error.message, error.code, error.param)

    return EventStream(frames, error_chunk=broken_off, with_ids=True, **options)
