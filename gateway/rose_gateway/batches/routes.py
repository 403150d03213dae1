"""/v1/batches"""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from rose.errors import FileNotFound
from rose_gateway.access.authentication import CallerDependency, MakerDependency
from rose_gateway.batches.repository import BatchParameters
from rose_gateway.batches.schema import BatchList, BatchObject, CreateBatch, shown, window_s
from rose_gateway.errors import ApiError
from rose_gateway.listing import Limit
from rose_gateway.openapi import body_of
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import parse
from rose_gateway.requests.request_fields import check_metadata
from rose_gateway.services import ServicesDependency

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
    return shown(await services.batches.create(parameters, caller.limits.max_unfinished_batches))


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
