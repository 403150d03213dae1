"""Foreign JSON: how much of it there may be is counted before it is parsed.

A body of 4 MiB may hold a million empty objects. To parse them takes long and 100 MB, and nobody
needs so many. What is counted here bounds all that is done with a body afterwards.
"""

from codecs import BOM_UTF8
from typing import Any

from pydantic_core import from_json

from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.turns import LARGE_BYTES

#: Arrays and objects; strings, names of fields among them; values of any kind: a prompt of token
#: ids has many.
_MAX_CONTAINERS = 1 << 16
_MAX_STRINGS = 1 << 17
_MAX_VALUES = 1 << 19

_MAX_MESSAGE = 300
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))


def json_object(text: bytes, *, max_nesting: int, name: str = "the body") -> dict[str, Any]:
    """`name`: what messages call it.

    Raises:
        BadRequest: it is no JSON object, or holds too much.
    """
    text = text.removeprefix(BOM_UTF8)  # of programs of Windows
    check_size(text, max_nesting=max_nesting, name=name)
    try:
        fields = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"{name} is not JSON: {error}"[:_MAX_MESSAGE]) from None
    if not isinstance(fields, dict):
        raise BadRequest(f"{name} must be a JSON object, not a JSON {_json_type(fields)}")
    return fields


def check_size(text: bytes, *, max_nesting: int, name: str) -> None:
    """Raises: BadRequest: it holds too much."""
    containers = text.count(b"[") + text.count(b"{")
    if len(text) <= LARGE_BYTES and containers <= max_nesting:
        return  # most bodies end here
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = text.count(b'"') // 2
    if strings > _MAX_STRINGS:
        raise _too_many(name, "strings", _MAX_STRINGS)
    structure = b"".join(text.split(b'"')[::2]).translate(None, _NOT_STRUCTURE)
    if structure.count(b",") > _MAX_VALUES:
        raise _too_many(name, "values", _MAX_VALUES)
    if structure.count(b"[") + structure.count(b"{") > _MAX_CONTAINERS:
        raise _too_many(name, "arrays and objects", _MAX_CONTAINERS)
    if containers > max_nesting and _nesting(structure) > max_nesting:
        raise BadRequest(
            f"{name}'s JSON is nested deeper than {max_nesting} levels", code="invalid_json"
        )


def _nesting(structure: bytes) -> int:
    depth = deepest = 0
    for bracket in structure.translate(None, b","):
        if bracket in b"[{":
            depth += 1
            if depth > deepest:
                deepest = depth
        else:
            depth -= 1
    return deepest


def _too_many(name: str, what: str, limit: int) -> BadRequest:
    return BadRequest(
        f"{name} holds more than {limit} {what}, which is the limit", code="too_large"
    )


def _json_type(value: Any) -> str:
    types = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return types.get(type(value), "number")
