"""Schemas as grammars follow them."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.json_schema import followed
from rose_gateway.tools.tools import Choice, Function, plan_tools

_TOKENIZER = LLTokenizer("byte")

UNFOLLOWED: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "string", "format": "int64"}, "format"),
    ({"format": "binary"}, "format"),
    ({"type": ["string", "null"], "format": "regex"}, "format"),
    ({"not": {"type": "null"}}, "not"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
    ({"if": {"type": "string"}}, "if"),
    ({"then": {"type": "string"}}, "then"),
    ({"else": False}, "else"),
    ({"type": "array", "contains": {"const": 1}}, "contains"),
    ({"type": "array", "minContains": 2}, "minContains"),
    ({"type": "array", "maxContains": 2}, "maxContains"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"dependentSchemas": {"a": {}}}, "dependentSchemas"),
    ({"dependencies": {"a": ["b"]}}, "dependencies"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"unevaluatedItems": False}, "unevaluatedItems"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
    ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
    ({"type": "string", "pattern": "^a(?!b)"}, "pattern"),
    ({"type": "string", "pattern": "(?<=a)b"}, "pattern"),
    ({"type": "string", "pattern": "(a)\\1"}, "pattern"),
    ({"type": "string", "pattern": "\\bfoo"}, "pattern"),
]
FOLLOWED: list[dict[str, Any]] = [
    {"type": "array", "uniqueItems": False},
    {"type": "integer", "format": "int64"},
    {"type": "string", "format": "date-time"},
    {"type": "object", "properties": {"not": {"type": "string"}, "if": {}}, "required": ["not"]},
    {"enum": [{"not": 1}, "uniqueItems"]},
    {"type": "string", "pattern": "^[\\w.-]+\\\\1$"},
    {"unevaluatedProperties": True},
    {"$dynamicAnchor": "a"},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
]


def compiles(sampling: dict[str, Any]) -> bool:
    """As a worker compiles it."""
    if "grammar" in sampling:
        source = LLMatcher.grammar_from_lark(sampling["grammar"])
    else:
        source = LLMatcher.grammar_from_json_schema(sampling["json_schema"])
    return not LLMatcher(_TOKENIZER, source, log_level=0).is_error()


def tool(number: int, name: str, schema: dict[str, Any], *, strict: bool = False) -> Function:
    inner = {"type": "object", "properties": {"v": schema}}
    return Function(name, None, inner, f"tools[{number}].function", strict)


FINE = tool(0, "fine", {"type": "string"}, strict=True)


@pytest.mark.parametrize(("schema", "key"), UNFOLLOWED, ids=str)
@pytest.mark.parametrize("mode", ["required", "named"])
def test_what_a_grammar_cannot_follow_is_left_out_or_refused_by_its_path(
    schema: dict[str, Any], key: str, mode: Any
) -> None:
    # given: alone it cannot be compiled
    assert not compiles({"grammar": f"start: %json {json.dumps(schema)}"})
    choice = Choice(mode, ("culprit",) if mode == "named" else None)
    # when
    plan = plan_tools([FINE, tool(1, "culprit", schema)], choice, tool_format="")
    with pytest.raises(BadRequest) as refused:
        plan_tools([FINE, tool(1, "culprit", schema, strict=True)], choice, tool_format="")
    # then: the model still reads all of it
    assert compiles(dict(plan.sampling))
    assert plan.definitions[-1]["function"]["parameters"]["properties"]["v"] == schema
    assert refused.value.param == f"tools[1].function.parameters.properties.v.{key}"
    assert "culprit" in str(refused.value)
    assert "%json" not in str(refused.value)


@pytest.mark.parametrize("schema", FOLLOWED, ids=str)
def test_what_a_grammar_follows_is_not_refused(schema: dict[str, Any]) -> None:
    functions = [FINE, tool(1, "other", schema, strict=True)]
    plan = plan_tools(functions, Choice("required"), tool_format="")

    assert compiles(dict(plan.sampling))


def test_alternatives_that_overlap_are_followed_as_any_of_them() -> None:
    overlapping = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}
    for choice in (Choice("required"), Choice("named", ("culprit",))):
        plan = plan_tools([FINE, tool(1, "culprit", overlapping)], choice, tool_format="")
        assert compiles(dict(plan.sampling))


@pytest.mark.parametrize(
    "path",
    [
        ("items",),
        ("prefixItems", 0),
        ("additionalProperties",),
        ("patternProperties", "^x"),
        ("$defs", "d"),
        ("definitions", "d"),
        ("anyOf", 1),
        ("allOf", 0),
        ("properties", "a", "items", "oneOf", 0),
    ],
)
def test_every_part_of_a_schema_is_looked_at(path: tuple[Any, ...]) -> None:
    # given
    schema: Any = {"uniqueItems": True}
    for part in reversed(path):
        schema = {part: schema} if isinstance(part, str) else [{}] * part + [schema]
    # when
    with pytest.raises(BadRequest) as refused:
        followed(schema, "schema", strict=True)
    # then
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    assert refused.value.param == f"schema{where}.uniqueItems"
    assert "uniqueItems" not in json.dumps(followed(schema, "schema", strict=False))


def test_what_is_no_schema_is_left_to_the_worker() -> None:
    for odd in ({"type": 5, "format": "x"}, {"items": 3}, {"properties": []}, {"anyOf": "x"}):
        followed(odd, "schema", strict=False)
    with pytest.raises(BadRequest, match="x-guidance: must be an object"):
        followed({"x-guidance": 1}, "schema", strict=False)
