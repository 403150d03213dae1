"""/v1/files"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from rose.errors import RoseError
from rose_gateway.access.authentication import CallerDependency, MakerDependency
from rose_gateway.errors import ApiError
from rose_gateway.files.download import Download
from rose_gateway.files.form import UploadForm
from rose_gateway.files.repository import FILE_ID, FileRecord, new_file_id
from rose_gateway.files.schema import (
    FIELD_NAMES,
    DeletedFile,
    FileList,
    FileObject,
    upload_body,
    upload_fields,
)
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.services import Services, ServicesDependency

router = APIRouter(prefix="/v1/files", tags=["files"])

FileId = Annotated[str, Path(max_length=128, description="file-...")]

_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The bytes of the file.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", summary="Upload a file", openapi_extra=upload_body())
async def upload_file(
    request: Request, services: ServicesDependency, caller: MakerDependency
) -> FileObject:
    """A multipart form. It is stored as it comes; what is refused in the end leaves nothing."""
    await services.jobs.limits.take(caller)
    await services.files.repository.check_quota(caller)
    form = UploadForm(request.headers.get("content-type", ""), request.stream(), FIELD_NAMES)
    now_ms = await services.files.repository.now_ms()
    file_id = new_file_id(now_ms)
    path = f"files/{file_id}"
    await services.files.repository.reserve(path)
    try:
        async with aclosing(_bounded(form, services)) as chunks:
            size = await services.files.store.write(path, chunks)
        fields = upload_fields(form.fields)
        _check_size(size)
        created_at = now_ms // 1000
        record = FileRecord(
            id=file_id,
            owner=caller.key_id,
            filename=form.filename,
            purpose=fields.purpose,
            bytes=size,
            created_at=created_at,
            expires_at=fields.expires_at(created_at),
            parts=(path,),
        )
        await services.files.repository.add(record, caller.limits)
    except Exception:
        with suppress(RoseError):  # then it is left to the sweeps
            await services.files.discard([path])
        raise
    return FileObject.of(record)


@router.get("", summary="List files")
async def list_files(
    services: ServicesDependency,
    caller: CallerDependency,
    purpose: Annotated[
        str | None, Query(max_length=64, pattern="^[a-z_-]+$", description="only files of this one")
    ] = None,
    after: Annotated[
        str | None,
        Query(pattern=f"^{FILE_ID}$", description="the id of a file: those that follow it"),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Annotated[Literal["asc", "desc"], Query(description="desc: the newest first")] = "desc",
) -> FileList:
    """Those of the caller. `after` works although its file was deleted meanwhile."""
    page = await services.files.repository.list(
        caller.key_id, after=after, limit=limit, order=order, purpose=purpose
    )
    return FileList.of(list(map(FileObject.of, page.records)), has_more=page.has_more)


@router.get("/{file_id}", summary="Retrieve a file's metadata")
async def retrieve_file(
    file_id: FileId, services: ServicesDependency, caller: CallerDependency
) -> FileObject:
    return FileObject.of(await services.files.repository.get(caller.key_id, file_id))


@router.delete("/{file_id}", summary="Delete a file")
async def delete_file(
    file_id: FileId, services: ServicesDependency, caller: CallerDependency
) -> DeletedFile:
    """Its content goes with it."""
    await services.files.delete(caller.key_id, file_id)
    return DeletedFile(id=file_id)


@router.get(
    "/{file_id}/content",
    summary="Download a file",
    responses=_CONTENT,
    response_class=Response,
    response_model=None,
)
async def download_file(
    file_id: FileId, services: ServicesDependency, caller: CallerDependency
) -> Response:
    record = await services.files.repository.get(caller.key_id, file_id)
    return Download(services.files.content(record), size=record.bytes, filename=record.filename)


def _check_size(size: int) -> None:
    """Raises: BadRequest"""
    if not size:
        raise BadRequest("file: is empty", "file")


async def _bounded(form: UploadForm, services: Services) -> AsyncGenerator[bytes, None]:
    """Raises: ApiError: 413"""
    limit = services.settings.max_file_bytes
    size = 0
    async with aclosing(form.file()) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            if size > limit:
                services.metrics.limit_hit("body")
                raise ApiError(
                    413,
                    f"file: is longer than {limit} bytes, which is the limit",
                    param="file",
                    code="file_too_large",
                )
            yield chunk
