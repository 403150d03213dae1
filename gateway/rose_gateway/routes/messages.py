"""Messages, as Anthropic's API has them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header
from starlette.responses import JSONResponse, Response

from rose_gateway.http.error_answers import ANTHROPIC_ERROR_RESPONSES
from rose_gateway.http.sse import EventStream, while_connected
from rose_gateway.jobs.job_client import JobGroup
from rose_gateway.messages import rendering
from rose_gateway.messages.events import PING, error_frame
from rose_gateway.messages.schema import (
    UNSUPPORTED,
    CountTokens,
    CreateMessage,
    MessageAnswer,
    TokenCount,
)
from rose_gateway.messages.submission import make_submission, prompt_submission
from rose_gateway.openapi import answer_of, body_of
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.routes.delivery import delivery, kept, prompt_counted, when_gone
from rose_gateway.routes.dependencies import HttpRequestDependency, IncomingHttpRequest

_EVENTS = "events from message_start to message_stop, in the order of their ids"

#: Its streams had another form. What is served here is the same in all later ones.
_FIRST_VERSION = "2023-01-01"


async def _check_version(
    anthropic_version: Annotated[
        str | None, Header(description=f"any but {_FIRST_VERSION}; need not be given")
    ] = None,
) -> None:
    """Raises: BadRequest"""
    if anthropic_version == _FIRST_VERSION:
        raise BadRequest(
            f"anthropic-version: {_FIRST_VERSION} is not served: send a later one",
            "anthropic-version",
        )


router = APIRouter(
    prefix="/v1/messages",
    tags=["messages"],
    responses=ANTHROPIC_ERROR_RESPONSES,
    dependencies=[Depends(_check_version)],
)


@router.post(
    "",
    summary="Create a message",
    openapi_extra=body_of(CreateMessage),
    responses=answer_of(MessageAnswer, stream=_EVENTS),
    response_model=None,
)
async def create_message(incoming: HttpRequestDependency) -> Response:
    """Waits for the answer or streams it. `GET /v1/jobs/{job_id}/events` resumes a stream."""
    request = incoming.parsed(CreateMessage, UNSUPPORTED)
    group = await incoming.services.jobs.submit(
        incoming.caller, await make_submission(incoming, request)
    )
    return await _delivered(incoming, group)


@router.post(
    "/count_tokens",
    summary="Count the tokens of a message's prompt",
    openapi_extra=body_of(CountTokens),
    responses=answer_of(TokenCount),
    response_model=None,
)
async def count_tokens(incoming: HttpRequestDependency) -> Response:
    """Exactly: a worker applies the chat template and the tokenizer, and generates nothing."""
    request = incoming.parsed(CountTokens, UNSUPPORTED)
    submission = await prompt_submission(incoming, request)
    event = await prompt_counted(incoming, submission)
    return JSONResponse({"input_tokens": event.prompt_tokens})


async def _delivered(incoming: IncomingHttpRequest, group: JobGroup) -> Response:
    gone = when_gone(incoming, group)
    if rendering.parameters_of(group).stream:
        # Who means to come back is told the job at once.
        held = not incoming.continues
        return EventStream(
            kept(rendering.streamed(incoming.services, group, held=held), group),
            on_disconnect=gone,
            error_chunk=error_frame,
            heartbeat=PING,
            held=held,
        )
    work = rendering.answer(incoming.services, group)
    async with delivery(group):
        message = await while_connected(incoming.request, work, on_disconnect=gone)
    return JSONResponse(message)
