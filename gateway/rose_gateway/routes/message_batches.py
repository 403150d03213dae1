"""Message batches, as Anthropic's API has them: a view of batches whose lines are messages."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from rose.errors import BatchNotFound, FileNotFound
from rose_gateway.access.authentication import Caller
from rose_gateway.batches.line import read_lines
from rose_gateway.errors import ApiError
from rose_gateway.http.error_answers import ANTHROPIC_ERROR_RESPONSES
from rose_gateway.openapi import body_of
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import compact, json_object, parse
from rose_gateway.requests.sampling import RequestModel
from rose_gateway.routes.dependencies import CallerDependency, MakerDependency, ServicesDependency
from rose_gateway.routes.files import Download
from rose_gateway.services import Services
from rose_gateway.storage.batch_repository import Batch, BatchParameters
from rose_gateway.storage.file_repository import FileRecord

_ENDPOINT = "/v1/messages"
_DAY_S = 86_400
#: How long the results are kept.
_KEPT_S = 29 * _DAY_S
#: Of all requests of a body; those of one file may be more.
_MAX_REQUESTS = 100_000
#: In the metadata of a batch: how many requests it has, before its lines are counted.
_REQUESTS = "requests"
_MAX_RESULT_BYTES = 16 * 1024 * 1024
_MAX_NESTING = 500

_CustomId = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class BatchedRequest(RequestModel):
    custom_id: _CustomId
    params: dict[str, Any] = Field(description="the body of a request for a message")


class CreateMessageBatch(RequestModel):
    requests: Annotated[
        list[BatchedRequest], Field(min_length=1, max_length=_MAX_REQUESTS, fail_fast=True)
    ]


class MessageCounts(BaseModel):
    processing: int
    succeeded: int
    errored: int
    """until the end, those that were cancelled or have expired among them"""
    canceled: int
    expired: int


class MessageBatch(BaseModel):
    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None = None
    results_url: str | None


class MessageBatchList(BaseModel):
    """The newest first."""

    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


router = APIRouter(
    prefix="/v1/messages/batches",
    tags=["messages"],
    responses=ANTHROPIC_ERROR_RESPONSES,
)

BatchId = Annotated[str, Path(max_length=128, description="msgbatch_...")]


@router.post("", summary="Create a batch of messages", openapi_extra=body_of(CreateMessageBatch))
async def create_message_batch(
    request: Request, services: ServicesDependency, caller: MakerDependency
) -> MessageBatch:
    """Each request is answered once, at the queue's lowest priority."""
    await services.jobs.limits.take(caller)
    nesting = services.settings.max_nesting + 3
    body = parse(CreateMessageBatch, await request.body(), max_nesting=nesting)
    _check_ids(body.requests)
    await services.files.repository.check_quota(caller)  # for what it will write, too
    now_ms = await services.batches.now_ms()
    created_at = now_ms // 1000
    source = await _stored(services, caller, body.requests, now_ms)
    parameters = BatchParameters(
        owner=caller.key_id,
        endpoint=_ENDPOINT,
        input_file_id=source.id,
        completion_window="24h",
        created_at=created_at,
        expires_at=created_at + _DAY_S,
        metadata={_REQUESTS: str(len(body.requests))},
        output_expires_s=_KEPT_S,
    )
    batch = await services.batches.create(parameters, caller.limits.max_unfinished_batches)
    return await _shown(services, batch)


@router.get("", summary="List the caller's batches of messages, newest first")
async def list_message_batches(
    services: ServicesDependency,
    caller: CallerDependency,
    after_id: Annotated[
        str | None, Query(max_length=128, description="the id of a batch: those before it")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> MessageBatchList:
    found: list[Batch] = []
    after, more = _batch_id(after_id) if after_id else None, True
    while more and len(found) <= limit:
        page, more = await services.batches.list(caller.key_id, after=after, limit=100)
        found += [batch for batch in page if batch.parameters.endpoint == _ENDPOINT]
        after = page[-1].id if page else None
    data = [await _shown(services, batch) for batch in found[:limit]]
    return MessageBatchList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(found) > limit,
    )


@router.get("/{batch_id}", summary="Retrieve a batch of messages")
async def retrieve_message_batch(
    batch_id: BatchId, services: ServicesDependency, caller: CallerDependency
) -> MessageBatch:
    return await _shown(services, await _found(services, caller, batch_id))


@router.post("/{batch_id}/cancel", summary="Cancel a batch of messages")
async def cancel_message_batch(
    batch_id: BatchId, services: ServicesDependency, caller: CallerDependency
) -> MessageBatch:
    """What was answered before is among its results. A repeat does no harm."""
    batch = await _found(services, caller, batch_id)
    return await _shown(services, await services.batches.cancel(caller.key_id, batch.id))


@router.get(
    "/{batch_id}/results",
    summary="Download the results of a batch of messages",
    responses={
        200: {
            "description": "A JSON object a line: custom_id, and the result.",
            "content": {"application/x-jsonl": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
    response_class=Response,
    response_model=None,
)
async def message_batch_results(
    batch_id: BatchId, services: ServicesDependency, caller: CallerDependency
) -> Response:
    batch = await _found(services, caller, batch_id)
    if not batch.ended:
        raise BadRequest("message_batch_id: it has not ended yet: retrieve it until it has")
    lines = _results(services, caller, batch)
    return Download(
        lines, size=None, filename=f"{batch_id}.jsonl", media_type="application/x-jsonl"
    )


def _check_ids(requests: Sequence[BatchedRequest]) -> None:
    """Raises: BadRequest: nobody could tell the results apart."""
    seen: set[str] = set()
    for number, request in enumerate(requests):
        if request.custom_id in seen:
            where = f"requests[{number}].custom_id"
            raise BadRequest(f"{where}: an earlier request has the same", where)
        seen.add(request.custom_id)


async def _stored(
    services: Services, caller: Caller, requests: Sequence[BatchedRequest], now_ms: int
) -> FileRecord:
    """The file of their lines. Raises: QuotaExceeded, StorageUnavailable, BrokerUnavailable"""

    async def lines() -> AsyncGenerator[bytes, None]:
        for request in requests:
            line = {
                "custom_id": request.custom_id,
                "method": "POST",
                "url": _ENDPOINT,
                "body": request.params,
            }
            yield compact(line).encode("utf-8", "replace") + b"\n"

    def record_of(file_id: str, path: str, size: int) -> FileRecord:
        return FileRecord(
            id=file_id,
            owner=caller.key_id,
            filename="message_batch.jsonl",
            purpose="batch",
            bytes=size,
            created_at=now_ms // 1000,
            expires_at=now_ms // 1000 + _KEPT_S,
            parts=(path,),
        )

    return await services.files.create(lines(), now_ms, caller.limits, record_of)


async def _found(services: Services, caller: Caller, given: str) -> Batch:
    """Raises: ApiError: 404"""
    with suppress(BatchNotFound):
        batch = await services.batches.get(caller.key_id, _batch_id(given))
        if batch.parameters.endpoint == _ENDPOINT:
            return batch
    raise ApiError(404, f"there is no batch of messages {given[:128]!r}", code="not_found")


def _batch_id(given: str) -> str:
    return f"batch_{given.removeprefix('msgbatch_')}"


async def _shown(services: Services, batch: Batch) -> MessageBatch:
    times = batch.times
    canceling = "cancelling_at" in times
    ended = next((times[f"{s}_at"] for s in _ENDS if f"{s}_at" in times), None)
    message_id = batch.id.replace("batch_", "msgbatch_", 1)
    status: Any = "ended" if batch.ended else "canceling" if canceling else "in_progress"
    return MessageBatch(
        id=message_id,
        processing_status=status,
        request_counts=await _counts(services, batch),
        created_at=_time(batch.parameters.created_at),
        expires_at=_time(batch.parameters.expires_at),
        ended_at=_time(ended) if batch.ended and ended is not None else None,
        cancel_initiated_at=_time(times["cancelling_at"]) if canceling else None,
        results_url=f"{_ENDPOINT}/batches/{message_id}/results" if batch.ended else None,
    )


_ENDS = ("completed", "failed", "expired", "cancelled")


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _counts(services: Services, batch: Batch) -> MessageCounts:
    """Why those of the error file have none is counted where more than one reason is possible."""
    total = batch.total
    if total is None:
        total = int(batch.parameters.metadata.get(_REQUESTS, 0))
    kinds = {"errored": batch.failed, "canceled": 0, "expired": 0}
    if batch.failed and batch.status in ("cancelled", "expired"):
        kinds = dict.fromkeys(kinds, 0)
        owner = Caller(batch.parameters.owner)
        async with aclosing(_records(services, owner, batch.error_file_id)) as records:
            async for record in records:
                kinds[_result(record)["type"]] += 1
    processing = 0 if batch.ended else total - batch.completed - batch.failed
    return MessageCounts(processing=max(0, processing), succeeded=batch.completed, **kinds)


async def _results(services: Services, caller: Caller, batch: Batch) -> AsyncGenerator[bytes, None]:
    """Raises: StorageUnavailable, BrokerUnavailable"""
    for file_id in (batch.output_file_id, batch.error_file_id):
        async with aclosing(_records(services, caller, file_id)) as records:
            async for record in records:
                line = {"custom_id": record["custom_id"], "result": _result(record)}
                yield compact(line).encode("utf-8", "replace") + b"\n"


async def _records(
    services: Services, caller: Caller, file_id: str | None
) -> AsyncGenerator[dict[str, Any], None]:
    """The answers of a file, none if it was deleted."""
    if file_id is None:
        return
    try:
        record = await services.files.repository.get(caller.key_id, file_id)
    except FileNotFound:
        return
    async with aclosing(services.files.content(record)) as chunks:
        async for line in read_lines(chunks, max_line_bytes=_MAX_RESULT_BYTES):
            yield json_object(line.raw, max_nesting=_MAX_NESTING)


def _result(record: dict[str, Any]) -> dict[str, Any]:
    """As Anthropic's API has it, of what a batch has written."""
    answer = record["response"]
    if answer is not None and answer["status_code"] == 200:
        return {"type": "succeeded", "message": answer["body"]}
    if answer is not None:
        return {"type": "errored", "error": {**answer["body"], "request_id": answer["request_id"]}}
    code = record["error"]["code"]
    if code in _UNANSWERED:
        return {"type": _UNANSWERED[code]}
    error = {"type": "invalid_request_error", "message": record["error"]["message"]}
    return {"type": "errored", "error": {"type": "error", "error": error, "request_id": None}}


_UNANSWERED = {"batch_cancelled": "canceled", "batch_expired": "expired"}
