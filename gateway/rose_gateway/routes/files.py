"""Files: OpenAI's objects, uploads and downloads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rose.errors import RoseError
from rose_gateway.errors import ApiError
from rose_gateway.files.form import UploadForm
from rose_gateway.http.sse import while_connected
from rose_gateway.listing import Page
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import refusal_of
from rose_gateway.routes.dependencies import CallerDependency, MakerDependency, ServicesDependency
from rose_gateway.services import Services
from rose_gateway.storage.file_repository import FILE_ID, FileRecord

BATCH = "batch"
_DAY_S = 86_400
#: As OpenAI has it. Files of other purposes stay until they are deleted.
_BATCH_TTL_S = 30 * _DAY_S

_ANCHOR = "expires_after[anchor]"
_SECONDS = "expires_after[seconds]"

#: OpenAI's purposes that this server cannot serve, and why.
_UNSUPPORTED = {
    "assistants": "there are no assistants here",
    "evals": "there are no evals here",
    "fine-tune": "there is no fine-tuning here",
    "vision": "the models here read no images",
}


class UploadFields(BaseModel):
    """The form beside its file."""

    model_config = ConfigDict(extra="forbid")

    purpose: Literal["batch", "user_data"] = Field(
        description="batch: the requests of a batch; user_data: whatever you like"
    )
    anchor: Literal["created_at"] | None = Field(
        default=None, alias=_ANCHOR, description="from when the seconds count"
    )
    seconds: int | None = Field(
        default=None,
        alias=_SECONDS,
        ge=3600,
        le=30 * _DAY_S,
        description="after which the file is deleted; a batch's after 30 days if not given",
    )

    def expires_at(self, created_at: int) -> int | None:
        """Unix seconds; None: never."""
        if self.seconds is not None:
            return created_at + self.seconds
        return created_at + _BATCH_TTL_S if self.purpose == BATCH else None


FIELD_NAMES = frozenset(field.alias or name for name, field in UploadFields.model_fields.items())


def upload_fields(fields: Mapping[str, str]) -> UploadFields:
    """Raises: BadRequest"""
    reason = _UNSUPPORTED.get(fields.get("purpose", ""))
    if reason is not None:
        raise BadRequest(f"purpose: {reason}; batch and user_data are known", "purpose")
    try:
        known = UploadFields.model_validate(dict(fields))
    except ValidationError as error:
        raise refusal_of(error, fields) from None
    if (known.anchor is None) != (known.seconds is None):
        missing = _ANCHOR if known.anchor is None else _SECONDS
        raise BadRequest(
            f"{missing}: is required and missing", missing, code="missing_required_parameter"
        )
    return known


def upload_body() -> dict[str, Any]:
    """For a route's `openapi_extra`."""
    schema = UploadFields.model_json_schema()
    for name in (_ANCHOR, _SECONDS):  # a form has no null
        field = schema["properties"][name]
        field |= next(kind for kind in field.pop("anyOf") if kind["type"] != "null")
        del field["default"]
    schema["properties"]["file"] = {
        "type": "string",
        "format": "binary",
        "minLength": 1,
        "description": "with a filename",
    }
    schema["required"] = ["file", *schema["required"]]
    schema["dependentRequired"] = {_ANCHOR: [_SECONDS], _SECONDS: [_ANCHOR]}
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    }


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    """Unix seconds"""
    expires_at: int | None
    """Unix seconds; null: it stays until it is deleted"""
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"

    @classmethod
    def of(cls, record: FileRecord) -> FileObject:
        return cls(
            id=record.id,
            bytes=record.bytes,
            created_at=record.created_at,
            expires_at=record.expires_at,
            filename=record.filename,
            purpose=record.purpose,
        )


class FileList(Page[FileObject]):
    """By age."""


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


log = logging.getLogger("rose.gateway")


class Download(Response):
    def __init__(
        self,
        content: AsyncGenerator[bytes, None],
        *,
        size: int | None,
        filename: str,
        media_type: str = "application/octet-stream",
    ) -> None:
        """`content` is closed in any case. `size`: None where nobody knows it before."""
        self._content = content
        self.media_type = media_type
        self.status_code = 200
        self.background = None
        self.init_headers(
            {
                **({} if size is None else {"content-length": str(size)}),
                "content-disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
                # Whoever uploads it chooses the content: no browser may take it for a page.
                "x-content-type-options": "nosniff",
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: ApiError, FileGone, StorageUnavailable: the answer has not begun."""
        services: Services = scope["app"].state.services
        async with aclosing(self._content) as content:
            with services.files.downloads.slot(services.metrics):
                first = await anext(content, b"")
                try:
                    writing = self._write(send, first, content, services.settings.write_timeout_s)
                    await while_connected(Request(scope, receive), writing)
                except (RoseError, TimeoutError) as error:
                    # That the answer is cut off is all that its reader can still be told.
                    why = error or "its reader takes nothing"
                    log.warning("a download was broken off: %s", why)
                    if (abandon := scope.get("abandon")) is not None:
                        abandon()

    async def _write(
        self, send: Send, first: bytes, rest: AsyncGenerator[bytes, None], patience_s: float
    ) -> None:
        """Raises: TimeoutError, FileGone, StorageUnavailable"""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _sent(send, first, patience_s)
        async for chunk in rest:
            await _sent(send, chunk, patience_s)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _sent(send: Send, chunk: bytes, patience_s: float) -> None:
    async with asyncio.timeout(patience_s):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


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
    created_at = now_ms // 1000

    def record_of(file_id: str, path: str, size: int) -> FileRecord:
        fields = upload_fields(form.fields)
        _check_size(size)
        return FileRecord(
            id=file_id,
            owner=caller.key_id,
            filename=form.filename,
            purpose=fields.purpose,
            bytes=size,
            created_at=created_at,
            expires_at=fields.expires_at(created_at),
            parts=(path,),
        )

    chunks = _bounded(form, services)
    return FileObject.of(await services.files.create(chunks, now_ms, caller.limits, record_of))


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
