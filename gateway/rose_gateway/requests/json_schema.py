"""Schemas as the grammars of workers follow them: without what no grammar can follow."""

import re
from collections.abc import Mapping
from typing import Any

from rose_gateway.requests.bad_request import BadRequest

#: Keywords that llguidance refuses, and the values that say nothing. All of them narrow what fits:
#: without them more does.
_UNFOLLOWED: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "not": (False,),
    "propertyNames": (True, {}),
    "if": (),
    "then": (),
    "else": (),
    "contains": (),
    "minContains": (),
    "maxContains": (),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
#: These only say where a reference leads that is not followed.
_ANCHORS = frozenset({"$dynamicAnchor", "$recursiveAnchor"})
_FORMATS = frozenset(
    [
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uri",
        "uuid",
        "unknown",
    ]
)
#: Looking around and back, which a finite automaton cannot do.
_UNFOLLOWED_PATTERN = re.compile(
    r"(?:^|[^\\])(?:\\\\)*(?:\(\?(?:<?[=!]|P=|>)|\\[1-9bBk])",
)
_SCHEMAS = frozenset({"items", "additionalItems", "additionalProperties", "prefixItems"}) | {
    "anyOf",
    "oneOf",
    "allOf",
}
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})


def followed(
    schema: Mapping[str, Any],
    param: str,
    *,
    strict: bool,
    owner: str = "",
    left_out: list[str] | None = None,
) -> dict[str, Any]:
    """The schema without what no grammar can follow. `owner`: whose it is, for messages.
    `left_out` is given the paths of what narrows it and is left out.

    Raises:
        BadRequest: it is `strict`, and something that narrows it would be left out.
    """
    walk = _Walk(strict, owner, left_out)
    try:
        made: dict[str, Any] = walk.schema(schema, param)
    except RecursionError:
        raise BadRequest(f"{param}: is nested too deep", param) from None
    options = made.get("x-guidance", {})
    if not isinstance(options, dict):
        where = f"{param}.x-guidance"
        raise BadRequest(f"{where}: must be an object", where)
    if walk.has_one_of and not strict:
        # Where alternatives overlap, a text may fit several of them.
        made["x-guidance"] = {**options, "coerce_one_of": True}
    return made


class _Walk:
    def __init__(self, strict: bool, owner: str, left_out: list[str] | None) -> None:
        self._strict = strict
        self._left_out = left_out
        self.has_one_of = False
        self._owner = f" (of {owner})" if owner else ""

    def schema(self, schema: Any, param: str) -> Any:
        if isinstance(schema, list):
            return [self.schema(item, f"{param}[{i}]") for i, item in enumerate(schema)]
        if not isinstance(schema, Mapping):
            return schema
        made: dict[str, Any] = {}
        for key, value in schema.items():
            where = f"{param}.{key[:64]}"
            self.has_one_of = self.has_one_of or key == "oneOf"
            if key in _SCHEMAS:
                made[key] = self.schema(value, where)
            elif key in _NAMED_SCHEMAS and isinstance(value, Mapping):
                made[key] = {
                    name: self.schema(inner, f"{where}.{name[:64]}")
                    for name, inner in value.items()
                }
            elif not self._leaves_out(key, value, schema.get("type"), where):
                made[key] = value
        return made

    def _leaves_out(self, key: str, value: Any, kind: Any, where: str) -> bool:
        """Raises: BadRequest"""
        if key in _ANCHORS:
            return True
        if key in _UNFOLLOWED:
            is_neutral = any(value == one and type(value) is type(one) for one in _UNFOLLOWED[key])
            if not is_neutral:
                self._refuse(where, f"{key!r} cannot be followed by a grammar")
            return True
        is_text = "string" in kind if isinstance(kind, str | list) else True
        if not isinstance(value, str) or not is_text:
            return False
        if key == "format" and value not in _FORMATS:
            self._refuse(where, f"the format {value[:64]!r} is not known")
            return True
        if key == "pattern" and _UNFOLLOWED_PATTERN.search(value):
            self._refuse(where, "a grammar cannot look around or back")
            return True
        return False

    def _refuse(self, where: str, reason: str) -> None:
        """Raises: BadRequest"""
        if self._strict:
            raise BadRequest(
                f"{where}{self._owner}: {reason}: leave it out, or say strict: false",
                where,
                code="invalid_json_schema",
            )
        if self._left_out is not None:
            self._left_out.append(where)
