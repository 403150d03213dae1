"""From the bytes of a request to its model, or to one refusal that names the field."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from rose_gateway.requests.bad_request import BadRequest

Model = TypeVar("Model", bound=BaseModel)

#: A field of OpenAI's that this server lacks: the values that ask for nothing, and why others are
#: refused. Null asks for nothing anywhere.
Unsupported = Mapping[str, tuple[Sequence[Any], str]]

_MAX_NAME = 64
_MAX_MESSAGE = 300


def parse(
    model: type[Model],
    body: bytes | Mapping[str, Any],
    unsupported: Unsupported | None = None,
    *,
    name: str = "the body",
) -> Model:
    """`body`: JSON text, or the object that it says. `name`: what messages call it.

    Raises:
        BadRequest: what is wrong, with the path of the field.
    """
    fields = _object(body, name) if isinstance(body, bytes) else dict(body)
    for field, (neutral, _) in (unsupported or {}).items():
        if field in fields and (fields[field] is None or fields[field] in neutral):
            del fields[field]
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise refusal_of(error, fields, unsupported) from None


def _object(body: bytes, name: str) -> dict[str, Any]:
    """Raises: BadRequest"""
    try:
        # Programs of Windows write a mark of the byte order before the text of a file.
        fields = from_json(body.removeprefix(BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"{name} is not JSON: {error}"[:_MAX_MESSAGE]) from None
    if not isinstance(fields, dict):
        raise BadRequest(f"{name} must be a JSON object, not a JSON {_json_type(fields)}")
    return fields


def refusal_of(
    error: ValidationError, fields: Any, unsupported: Unsupported | None = None
) -> BadRequest:
    """The one of the errors that says most: of alternatives, the one that fits furthest."""
    details = error.errors(include_url=False)
    paths = [_path(item, fields) for item in details]
    # Only the alternative that fits says how long it may be.
    number = max(
        range(len(details)),
        key=lambda i: (details[i]["type"] == "too_long", len(paths[i]), -i),
    )
    item, path = details[number], paths[number]
    param = _param(path)
    if item["type"] in ("extra_forbidden", "none_required"):
        _, reason = (unsupported or {}).get(param, ((), ""))
        if reason:
            return BadRequest(f"{param}: {reason}", param, code="unsupported_parameter")
        return BadRequest(f"{param}: no such parameter", param, code="unknown_parameter")
    if item["type"] in ("missing", "union_tag_not_found"):
        return BadRequest(
            f"{param}: is required and missing", param, code="missing_required_parameter"
        )
    message = f"{param or 'the body'}: {item['msg']}"
    return BadRequest(message[:_MAX_MESSAGE], param or None, code="invalid_value")


def _path(item: ErrorDetails, fields: Any) -> list[str | int]:
    """Where it is in the request: pydantic puts the names of alternatives in between."""
    path: list[str | int] = []
    value, location = fields, item["loc"]
    for number, part in enumerate(location):
        if _has(value, part):
            value = value[part]
        elif not (item["type"] == "missing" and number == len(location) - 1):
            continue
        path.append(part)
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(item["ctx"]["discriminator"].strip("'"))
    return path


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _param(path: Sequence[str | int]) -> str:
    """As OpenAI writes it: messages[0].content"""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + part[:_MAX_NAME]
    return text


def _json_type(value: Any) -> str:
    types = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return types.get(type(value), "number")
