"""What /v1/files takes and shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rose_gateway.files.repository import FileRecord
from rose_gateway.listing import Page
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import refusal_of

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
