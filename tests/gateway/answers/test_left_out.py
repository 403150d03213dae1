"""An answer says which schemas its calls are not held to."""

from typing import Any

import pytest

from rose.protocol import FinishedEvent, TokenEvent
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.warnings import not_followed
from rose_gateway.tools.tools import Choice, Function, TextInput, plan_tools
from tests.gateway.chat import test_chunks as chat
from tests.gateway.messages import test_events as messages
from tests.gateway.responses import logs as responses
from tests.gateway.responses.test_events import replay

REASON = "grammar: too large"
(WARNING,) = not_followed([REASON])
AUTO = Choice("auto")
UNIQUE = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
LOG: list[Any] = [
    TokenEvent(index=0, token_ids=(1,), text="Hi"),
    FinishedEvent(index=1, reason="eos", prompt_tokens=3, left_out=REASON),
]


def plan(schema: dict[str, Any], tool_format: str, choice: Choice = AUTO, **more: Any) -> Any:
    function = Function("f", None, schema, "tools[0].function", **more)
    return plan_tools([function], choice, tool_format=tool_format)


def test_what_a_worker_leaves_out_stands_in_the_answer_and_at_the_end_of_a_stream() -> None:
    asked = chat.ChatParameters()
    assert chat.whole(asked, LOG)["warnings"] == [WARNING]
    chunks = chat.streamed(asked, LOG)
    assert [chunk.get("warnings") for chunk in chunks] == [None, None, [WARNING]]

    events, made = messages.events_of(messages.parameters(), LOG)
    assert made.message is not None
    assert made.message["warnings"] == [WARNING]
    assert events[-2]["warnings"] == [WARNING]

    last = responses.parsed(replay(responses.parameters(), LOG))[-1]
    assert last["response"]["warnings"] == [WARNING]


@pytest.mark.parametrize(
    ("schema", "tool_format", "part"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "hermes", "uniqueItems"),
        ({"properties": {"a": {"type": "string", "format": "date"}}}, "glm45", "f.a: format"),
        ({"properties": {"a": {"type": "string"}}, "minProperties": 1}, "qwen3_xml", "minProp"),
        ({"properties": {"a": {"enum": ["x" * 70_000]}}}, "hermes", "65536"),
    ],
)
def test_what_a_grammar_cannot_follow_is_told(
    schema: dict[str, Any], tool_format: str, part: str
) -> None:
    (warning,) = plan(schema, tool_format).warnings

    assert warning["code"] == "schema_not_followed"
    assert part in warning["message"]


@pytest.mark.parametrize("choice", [Choice("required"), Choice("named", ("f",))])
def test_what_required_calls_leave_out_is_told(choice: Choice) -> None:
    (warning,) = plan(UNIQUE, "", choice).warnings

    assert warning["code"] == "schema_not_followed"
    assert "tools[0].function.parameters.properties.a.uniqueItems" in warning["message"]
    assert not plan({"properties": {"a": {"type": "integer"}}}, "", choice).warnings
    with pytest.raises(BadRequest, match="uniqueItems"):
        plan(UNIQUE, "", choice, strict=True)


def test_what_can_be_followed_needs_no_word() -> None:
    date = {"properties": {"a": {"type": "string", "format": "date"}}}
    for tool_format in ("hermes", "pythonic", "harmony"):
        assert not plan(date, tool_format).warnings
    pattern = {"properties": {"a": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9}}}
    assert not plan(pattern, "glm45").warnings


def test_a_strict_schema_is_followed_or_refused() -> None:
    with pytest.raises(BadRequest, match="uniqueItems"):
        plan({"properties": {"a": {"uniqueItems": True}}}, "hermes", strict=True)


def test_a_custom_tool_whose_grammar_cannot_stand_in_json_is_free() -> None:
    text = TextInput("lark", 'start: "(" start ")" | "x"')

    assert "its grammar" in plan({}, "hermes", text=text).warnings[0]["message"]
