"""A response from its job: as a stream, as it ended, as it is now."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field

from rose.engine_records import TokenLogprob
from rose.errors import JobNotFound
from rose.protocol import TERMINAL_STATUSES, Event, FailedEvent, FinishedEvent
from rose_gateway.jobs.job_answer import failure
from rose_gateway.jobs.job_client import JobGroup
from rose_gateway.listing import Page
from rose_gateway.models.catalogue import Vocabulary, chat_logprob
from rose_gateway.requests.warnings import ShownWarning
from rose_gateway.responses.events import (
    REQUEST_FAULTS,
    ResponseEvents,
    ResponseStatus,
)
from rose_gateway.responses.output import ItemStatus, LogprobEntry
from rose_gateway.responses.parameters import ResponseParameters
from rose_gateway.services import Services


class InputTokensDetails(BaseModel):
    cached_tokens: int
    """of the input, found in the worker's prefix cache"""
    cache_write_tokens: int


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(BaseModel):
    code: Literal["server_error", "invalid_prompt", "context_length_exceeded"]
    message: str
    param: str | None
    type: str = Field(description="what happened, such as deadline_exceeded or crash_loop")


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class OutputItem(BaseModel):
    id: str
    type: Literal[
        "message",
        "reasoning",
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
    ]
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[dict[str, Any]] = Field(
        default=[], description="of a message: output_text; of a reasoning: reasoning_text"
    )
    summary: list[dict[str, Any]] = Field(default=[], description="of a reasoning: empty")
    encrypted_content: str | None = Field(
        default=None, description="of a reasoning, where `include` asks for it"
    )
    call_id: str = Field(default="", description="of a call")
    name: str = Field(default="", description="of a function_call and a custom_tool_call")
    namespace: str = Field(default="", description="of a tool of a namespace")
    arguments: str = Field(default="", description="of a function_call: JSON text")
    input: str = Field(default="", description="of a custom_tool_call")
    action: dict[str, Any] = Field(default={}, description="of a local_shell_call and a shell_call")
    operation: dict[str, Any] = Field(default={}, description="of an apply_patch_call")


class ResponseObject(BaseModel):
    """A response. What was asked for stands in it as it was understood."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[OutputItem]
    usage: ResponseUsage | None = Field(description="of a response that completed or is incomplete")
    model: str
    previous_response_id: str | None
    instructions: str | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    max_tool_calls: int | None
    text: dict[str, Any]
    reasoning: dict[str, Any]
    truncation: Literal["disabled"]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    metadata: dict[str, str]
    service_tier: Literal["default", "flex", "priority"]
    store: bool
    background: bool
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    warnings: list[ShownWarning] | None = None


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ItemList(Page[dict[str, Any]]):
    """Items of a conversation."""


async def events_of(
    services: Services, group: JobGroup, starting_after: int | None = None
) -> ResponseEvents:
    """For the job of a response. `starting_after`: as `ResponseEvents` has it.

    Raises: BrokerUnavailable, MalformedMessage
    """
    parameters = parameters_of(group)
    entry = None
    if parameters.logprobs:
        entry = _logprob_entry(await services.vocabularies.get(parameters.vocabulary))
    audience = parameters.sealed_for
    seal = None if audience is None else await services.sealing.seal(audience)
    return ResponseEvents(
        parameters,
        group.id,
        group.created_at,
        starting_after=starting_after,
        logprobs=entry,
        seal=seal,
    )


def parameters_of(group: JobGroup) -> ResponseParameters:
    """Raises: JobNotFound: it is no response; MalformedMessage"""
    if group.record is None or group.record.endpoint != "response":
        raise JobNotFound(f"job {group.id} is no response")
    return ResponseParameters.from_record(group.record.request)


async def streamed(group: JobGroup, events: ResponseEvents) -> AsyncGenerator[bytes, None]:
    """The frames of a stream up to its end; those that are ready together come together. There are
    none where the reader has its end.

    Raises: JobNotFound, BrokerUnavailable
    """
    if begun := events.begin():
        yield begun
    async with aclosing(group.bursts()) as bursts:
        async for burst in bursts:
            if data := b"".join([await _fed(events, group, event) for _, event in burst]):
                yield data
    if end := events.done():
        yield end


async def ended(group: JobGroup, events: ResponseEvents) -> dict[str, Any]:
    """The response as it ended, when it has.

    Raises: JobNotFound, BrokerUnavailable
    """
    response, _ = await _to_the_end(group, events)
    return response


async def answered(
    group: JobGroup, events: ResponseEvents, *, pause_s: float = 0.0
) -> dict[str, Any]:
    """As `ended`, for whoever has just asked for it. `pause_s`: as for `JobGroup.bursts`.

    Raises:
        JobNotFound, BrokerUnavailable
        ApiError: the request itself is at fault, as the worker has found.
    """
    response, last = await _to_the_end(group, events, pause_s)
    if isinstance(last, FailedEvent) and last.code in REQUEST_FAULTS:
        raise failure(last, group)
    return response


async def current(group: JobGroup, events: ResponseEvents) -> dict[str, Any]:
    """The response as its job's state says, with the output that was logged until then.

    Raises: JobNotFound, BrokerUnavailable
    """
    state = group.state
    if state.status in TERMINAL_STATUSES:
        return await ended(group, events)
    events.begin()
    if state.tokens:
        async with aclosing(group.bursts()) as bursts:
            async for burst in bursts:
                for _, event in burst:
                    await _fed(events, group, event)
                if events.ended is not None:
                    return events.ended
                if burst[-1][1].cursor >= state.tokens:
                    break
    begun = state.status == "running" or state.tokens > 0
    status: ResponseStatus = "in_progress" if begun else "queued"
    return events.response(status)


async def _to_the_end(
    group: JobGroup, events: ResponseEvents, pause_s: float = 0.0
) -> tuple[dict[str, Any], Event]:
    events.begin()
    async with aclosing(group.bursts(pause_s=pause_s)) as bursts:
        async for burst in bursts:
            for _, event in burst:
                await _fed(events, group, event)
                if events.ended is not None:
                    return events.ended, event
    raise JobNotFound(f"job {group.id} ended without a terminal event")


async def _fed(events: ResponseEvents, group: JobGroup, event: Event) -> bytes:
    if isinstance(event, FinishedEvent) and event.reason != "length":
        return events.feed(event, await _completed_at(group))
    return events.feed(event)


async def _completed_at(group: JobGroup) -> int | None:
    """Unix seconds. The log has no times; the state got its own with the last entry of the log."""
    if group.state.ended_ms is None:
        try:
            await group.refresh()
        except JobNotFound:  # deleted while it was read: nobody will compare
            return None
    ended_ms = group.state.ended_ms
    return None if ended_ms is None else ended_ms // 1000


_unpack = msgspec.msgpack.Decoder(tuple[int, TokenLogprob]).decode


def _logprob_entry(vocabulary: Vocabulary) -> LogprobEntry:
    def entry(packed: bytes) -> dict[str, Any]:
        return _with_bytes(chat_logprob(vocabulary, *_unpack(packed)))

    return entry


def _with_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    """Here `bytes` is always a list, empty where nobody knows the token."""
    for shown in (entry, *entry["top_logprobs"]):
        shown["bytes"] = shown["bytes"] or []
    return entry
