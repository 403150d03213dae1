"""From the bytes of a request to its model, or to one refusal that names the field."""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from rose_gateway.pacing import LARGE_BYTES
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.sampling import MAX_FIELDS, names_of

# Lines end here for readers that follow Unicode; a line of an event stream must not.
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
_ENCODE = json.encoder.encode_basestring
_ENCODE_ASCII = json.encoder.encode_basestring_ascii


def json_string(text: str) -> str:
    """A text as JSON has it, without anything that any reader takes for the end of a line."""
    if text.isascii() or not _LINE_ENDS.search(text):
        return _ENCODE(text)
    return _ENCODE_ASCII(text)


def compact(value: Any) -> str:
    """JSON without spaces; raises ValueError for what JSON cannot say."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text if text.isascii() or not _LINE_ENDS.search(text) else _escaped(text)


def _escaped(text: str) -> str:
    return _LINE_ENDS.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


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


Model = TypeVar("Model", bound=BaseModel)

#: A field of OpenAI's that this server lacks: the values that ask for nothing, and why others are
#: refused. Null asks for nothing anywhere.
Unsupported = Mapping[str, tuple[Sequence[Any], str]]

#: Parameters by which false asks for something.
_FALSE_ASKS = frozenset(
    (
        *("add_generation_prompt", "cache_prompt", "enable_thinking", "skip_special_tokens"),
        *("spaces_between_special_tokens", "think"),
    )
)
#: How an option of a parameter says that it is switched off, or left open.
_OFF = ("none", "disabled", "off")
_OPEN = (*_OFF, "auto", "default")

_MAX_NAME = 64


def parse(
    model: type[Model],
    body: bytes | Mapping[str, Any],
    unsupported: Unsupported | None = None,
    *,
    name: str = "the body",
    max_nesting: int = 100,
) -> Model:
    """`body`: JSON text, or the object that it says. `name`: what messages call it.

    Raises:
        BadRequest: what is wrong, with the path of the field.
    """
    if isinstance(body, bytes):
        fields = json_object(body, max_nesting=max_nesting, name=name)
    else:
        fields = dict(body)
    if len(fields) > MAX_FIELDS:
        raise BadRequest(f"{name} has more than {MAX_FIELDS} fields, which is the limit")
    known = names_of(model)
    for field in () if fields.keys() <= known else fields.keys() - known:
        neutral, _ = (unsupported or {}).get(field, ((), ""))
        if fields[field] in neutral or (
            field not in _FALSE_ASKS and asks_for_nothing(fields[field])
        ):
            del fields[field]
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise refusal_of(error, fields, unsupported) from None


def asks_for_nothing(value: Any) -> bool:
    """Whether a parameter of this value leaves things as they are, whatever it is called: clients
    and routers write one that is switched off or left open in many ways."""
    if isinstance(value, Mapping):
        if value.get("enabled") is False or value.get("type") in _OFF:
            return True
        return all(asks_for_nothing(inner) or inner in _OPEN for inner in value.values())
    return value is None or value is False or value in ("", [])


class _Mistake(NamedTuple):
    """An error of pydantic's. Of a union it has those of every alternative."""

    item: ErrorDetails
    path: list[str | int]
    """where it is in the request"""
    union: tuple[str | int, ...]
    """the path of the first union that it is in"""
    alternative: tuple[str | int, ...]
    """which alternatives of unions it is of; () where it is in none"""

    @property
    def is_of_another_type(self) -> bool:
        return self.item["type"] in _TYPES or self.item["type"] == "literal_error"

    @property
    def is_of_another_tag(self) -> bool:
        return self.item["type"] == "literal_error" and self.path[-1:] in (["type"], ["role"])


#: What a value must be, by pydantic's errors.
_TYPES = {
    "string_type": "a string",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
}


def refusal_of(
    error: ValidationError, fields: Any, unsupported: Unsupported | None = None
) -> BadRequest:
    """The one of the errors that says most: of alternatives, the one that was meant."""
    mistakes = _of_what_was_meant(
        [_mistake(item, fields) for item in error.errors(include_url=False)]
    )
    told = max(enumerate(mistakes), key=lambda pair: _fit(pair[1], pair[0]))[1]
    item, param = told.item, _param(told.path)
    if item["type"] in ("extra_forbidden", "none_required"):
        _, reason = (unsupported or {}).get(param, ((), ""))
        if reason:
            return BadRequest(f"{param}: {reason}", param, code="unsupported_parameter")
        return BadRequest(f"{param}: no such parameter", param, code="unknown_parameter")
    if item["type"] in ("missing", "union_tag_not_found"):
        return BadRequest(
            f"{param}: is required and missing", param, code="missing_required_parameter"
        )
    message = f"{param or 'the body'}: {_wrong(told, mistakes)}"
    return BadRequest(message[:_MAX_MESSAGE], param or None, code="invalid_value")


def _of_what_was_meant(mistakes: list[_Mistake]) -> list[_Mistake]:
    """The first of each alternative, and none of one whose tag is another where one has the tag."""
    by_alternative: dict[Any, list[_Mistake]] = {}
    left = []
    for number, mistake in enumerate(mistakes):
        key = (mistake.union, mistake.alternative) if mistake.alternative else number
        by_alternative.setdefault(key, []).append(mistake)
    tagged = {
        group[0].union
        for group in by_alternative.values()
        if group[0].alternative
        and len(group[0].path) > len(group[0].union)
        and not any(mistake.is_of_another_tag for mistake in group)
    }
    for group in by_alternative.values():
        wrong_tag = next((mistake for mistake in group if mistake.is_of_another_tag), None)
        if wrong_tag is None or group[0].union not in tagged:
            left.append(wrong_tag or group[0])
    return left


def _fit(mistake: _Mistake, number: int) -> tuple[Any, ...]:
    """How far the request fits up to a mistake."""
    indexes = [part if isinstance(part, int) else 0 for part in mistake.path]
    # Only the alternative that fits says how long it may be.
    is_too_long = mistake.item["type"] == "too_long"
    rank = 2 if mistake.is_of_another_tag else int(not mistake.is_of_another_type)
    return is_too_long, len(mistake.path), rank, indexes, -number


def _wrong(told: _Mistake, mistakes: Sequence[_Mistake]) -> str:
    """With all that it may be, where it is none of several."""
    others = [m for m in mistakes if m.path == told.path and m.is_of_another_type]
    if not told.is_of_another_type or (
        len(others) < 2 and _TYPES.get(told.item["type"]) != "an object"
    ):
        return told.item["msg"]
    words = dict.fromkeys(
        m.item["ctx"]["expected"] if m.item["type"] == "literal_error" else _TYPES[m.item["type"]]
        for m in others
    )
    return "must be " + " or ".join(words)


def _mistake(item: ErrorDetails, fields: Any) -> _Mistake:
    """Pydantic puts the names of alternatives into the path."""
    path: list[str | int] = []
    union: tuple[str | int, ...] | None = None
    names: list[str | int] = []
    value, location = fields, item["loc"]
    for number, part in enumerate(location):
        if _has(value, part):
            value = value[part]
        elif not (item["type"] == "missing" and number == len(location) - 1):
            union = tuple(path) if union is None else union
            names.append(part)
            continue
        path.append(part)
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(item["ctx"]["discriminator"].strip("'"))
    return _Mistake(item, path, union or (), tuple(names))


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
