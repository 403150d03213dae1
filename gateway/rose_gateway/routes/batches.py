"""Batches: OpenAI's objects, and the routes."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field

from rose.errors import FileNotFound
from rose_gateway.answers.endpoint import Metadata, check_metadata
from rose_gateway.batches.line import Endpoint
from rose_gateway.errors import ApiError
from rose_gateway.listing import Page
from rose_gateway.openapi import body_of
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import parse
from rose_gateway.requests.sampling import RequestModel
from rose_gateway.routes.dependencies import (
    CallerDependency,
    Limit,
    MakerDependency,
    ServicesDependency,
)
from rose_gateway.storage.batch_repository import Batch, BatchParameters, Problem, Status

_WINDOW = re.compile(r"([1-9]\d{0,3})([hd])")
_HOUR_S = 3600
_MAX_WINDOW_S = 7 * 86_400


class OutputExpiresAfter(RequestModel):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


class CreateBatch(RequestModel):
    input_file_id: str = Field(max_length=128, description="a file with the purpose batch")
    endpoint: Endpoint = Field(description="the endpoint of every line")
    completion_window: str = Field(
        max_length=8, description="24h, or any number of hours (h) or days (d) up to 7d"
    )
    metadata: Metadata | None = None
    output_expires_after: OutputExpiresAfter | None = Field(
        default=None, description="when the output and error files are deleted; never if omitted"
    )


def window_s(window: str) -> int:
    """Raises: BadRequest"""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * (_HOUR_S if match[2] == "h" else 24 * _HOUR_S) if match else 0
    if not 0 < seconds <= _MAX_WINDOW_S:
        raise BadRequest(
            f"completion_window: {window!r} is none: use 24h, or hours or days up to 7d",
            "completion_window",
            code="invalid_value",
        )
    return seconds


class RequestCounts(BaseModel):
    """completed + failed: what has ended; these are the lines of the output and error files."""

    total: int
    """0 until they have been counted"""
    completed: int
    failed: int


class BatchProblem(BaseModel):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchProblems(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchProblem]


class BatchObject(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchProblems | None
    """why it has failed"""
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(Page[BatchObject]):
    """The newest first."""


def shown(batch: Batch) -> BatchObject:
    parameters, times = batch.parameters, batch.times
    return BatchObject(
        id=batch.id,
        endpoint=parameters.endpoint,
        errors=_problems(batch.problems) if batch.status == "failed" else None,
        input_file_id=parameters.input_file_id,
        completion_window=parameters.completion_window,
        status=batch.status,
        output_file_id=batch.output_file_id if batch.ended else None,
        error_file_id=batch.error_file_id if batch.ended else None,
        created_at=parameters.created_at,
        in_progress_at=times.get("in_progress_at"),
        expires_at=parameters.expires_at,
        finalizing_at=times.get("finalizing_at"),
        completed_at=times.get("completed_at"),
        failed_at=times.get("failed_at"),
        expired_at=times.get("expired_at"),
        cancelling_at=times.get("cancelling_at"),
        cancelled_at=times.get("cancelled_at"),
        request_counts=RequestCounts(
            total=batch.total or 0, completed=batch.completed, failed=batch.failed
        ),
        metadata=dict(parameters.metadata) or None,
    )


def _problems(problems: Sequence[Problem]) -> BatchProblems | None:
    if not problems:
        return None
    data = [
        BatchProblem(code=p.code, message=p.message, param=p.param, line=p.line) for p in problems
    ]
    return BatchProblems(data=data)


router = APIRouter(prefix="/v1/batches", tags=["batches"])

BatchId = Annotated[str, Path(max_length=128, description="batch_...")]


@router.post("", summary="Create a batch", openapi_extra=body_of(CreateBatch))
async def create_batch(
    request: Request, services: ServicesDependency, caller: MakerDependency
) -> BatchObject:
    """Each line of the input file is a request, and is answered once, at the queue's lowest
    priority. Lines that are wrong get their answers too, in the error file."""
    await services.jobs.limits.take(caller)
    nesting = services.settings.max_nesting
    body = parse(CreateBatch, await request.body(), max_nesting=nesting)
    lives_s = window_s(body.completion_window)
    metadata = check_metadata(body.metadata)
    try:
        source = await services.files.repository.get(caller.key_id, body.input_file_id)
    except FileNotFound as error:
        raise ApiError(404, str(error), param="input_file_id", code="not_found") from None
    if source.purpose != "batch":
        raise BadRequest(
            f"input_file_id: the file has the purpose {source.purpose}: upload it as batch",
            "input_file_id",
            code="invalid_value",
        )
    await services.files.repository.check_quota(caller)  # for what it will write
    created_at = await services.batches.now_ms() // 1000
    expires_after = body.output_expires_after
    parameters = BatchParameters(
        owner=caller.key_id,
        endpoint=body.endpoint,
        input_file_id=source.id,
        completion_window=body.completion_window,
        created_at=created_at,
        expires_at=created_at + lives_s,
        metadata=metadata,
        output_expires_s=expires_after.seconds if expires_after else None,
    )
    batch = await services.batches.create(
        parameters,
        caller.limits.max_unfinished_batches,
        owes_event=await services.webhooks.is_owed(caller.key_id),
    )
    return shown(batch)


@router.get("", summary="List the caller's batches, newest first")
async def list_batches(
    services: ServicesDependency,
    caller: CallerDependency,
    after: Annotated[
        str | None, Query(max_length=128, description="the id of a batch: those before it")
    ] = None,
    limit: Limit = 20,
) -> BatchList:
    batches, has_more = await services.batches.list(caller.key_id, after=after, limit=limit)
    return BatchList.of([shown(batch) for batch in batches], has_more=has_more)


@router.get("/{batch_id}", summary="Retrieve a batch")
async def retrieve_batch(
    batch_id: BatchId, services: ServicesDependency, caller: CallerDependency
) -> BatchObject:
    return shown(await services.batches.get(caller.key_id, batch_id))


@router.post("/{batch_id}/cancel", summary="Cancel a batch")
async def cancel_batch(
    batch_id: BatchId, services: ServicesDependency, caller: CallerDependency
) -> BatchObject:
    """It is `cancelling` until its files are there. What was answered before is in the output, the
    other lines in the error file. A repeat does no harm."""
    batch = await services.batches.cancel(caller.key_id, batch_id)
    if batch.ended and batch.status != "cancelled":
        raise ApiError(
            409,
            f"the batch is {batch.status} already",
            param="batch_id",
            code="batch_ended",
        )
    return shown(batch)
