"""Bodies of /v1/batches, as OpenAI has them."""

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from rose_gateway.batches.line import Endpoint
from rose_gateway.batches.repository import Batch, Problem, Status
from rose_gateway.listing import Page
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.request_fields import Metadata
from rose_gateway.requests.sampling import RequestModel

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
