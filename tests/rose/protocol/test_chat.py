"""Chats with tools: what is a message, a call and a tool, and what is refused."""

import json
from typing import Any

import msgpack
import pytest

from rose.errors import InvalidParameter, MalformedMessage
from rose.protocol import JobSpec, decode_job, encode_job, job_from
from rose.protocol.jobs import MAX_TEMPLATE_KWARGS_BYTES, MAX_TOOLS, MAX_TOOLS_BYTES

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How the weather is",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
        },
        "strict": True,
    },
}
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Köln", "days": 2}'},
}
CHAT: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "And in Köln?", "name": "ada"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
]


def job(prompt: object = CHAT, **fields: object) -> JobSpec:
    return job_from({"id": "0-a", "prompt": prompt, **fields})


def with_call(**changes: object) -> list[dict[str, Any]]:
    """A chat whose one call has other arguments, or another name."""
    function = {**CALL["function"], **changes}
    return [{"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": function}]}]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def test_a_chat_with_tools_survives_the_wire() -> None:
    # given
    given = job(tools=[WEATHER])
    # when
    again = decode_job(encode_job(given))
    # then
    assert again == given
    assert again.tools == (WEATHER,)
    (call,) = again.messages[2].tool_calls
    assert (call.id, call.type, call.function.name) == ("call_1", "function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Köln", "days": 2}


def test_a_chat_without_tools_has_the_bytes_it_always_had() -> None:
    """So workers of the version before run it."""
    # given
    chat = [{"role": "system", "content": ""}, {"role": "user", "content": "hi"}]
    # then
    assert encode_job(job(chat)) == msgpack.packb({"id": "0-a", "prompt": chat, "v": 1})


def test_what_a_chat_costs_counts_its_calls_and_tools() -> None:
    # given
    plain = [{key: m[key] for key in ("role", "content")} for m in CHAT]
    # when
    costs = [job(plain), job(CHAT), job(CHAT, tools=[WEATHER])]
    # then
    bare, calls, tools = (each.token_estimate for each in costs)
    assert bare + 10 < calls
    assert calls + 50 < tools


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([{"role": "robot", "content": "x"}], "0.role: Input should be 'system'"),
        ([{"role": "user"}], "0.content: Field required"),
        ([*CHAT, {"role": "user", "content": None}], "4.content: Input should be a valid string"),
        ([{"role": "user", "content": "x", "mood": 1}], "0.mood: no such parameter"),
        ([{**CHAT[2], "role": "user"}], "0: tool_calls are for the role assistant alone"),
        ([{**CHAT[3], "role": "user"}], "0: tool_call_id is for the role tool alone"),
        ([{**CHAT[2], "tool_calls": [CALL] * 129}], "0.tool_calls: "),
        ([{**CHAT[2], "tool_calls": [{**CALL, "type": "custom"}]}], "0.tool_calls.0.type: "),
        (with_call(name="a b"), "0.tool_calls.0.function.name: "),
        (with_call(arguments="[]"), "arguments: must be the text of a JSON object"),
        (with_call(arguments='{"a": '), "arguments: must be the text of a JSON object"),
        (with_call(arguments='{"a": NaN}'), "arguments: must be the text of a JSON object"),
        (with_call(arguments='{"a":' * 40 + "1" + "}" * 40), "arguments: must not be nested"),
        (with_call(arguments="[" * 200_000), "arguments: must be the text of a JSON object"),
        (with_call(arguments={"a": 1}), "arguments: Input should be a valid string"),
    ],
)
def test_a_wrong_message_is_named_and_not_quoted(prompt: object, says: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        job(prompt)
    assert str(caught.value).startswith("prompt: must be non-empty text, chat messages")
    assert says in str(caught.value)
    assert "robot" not in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([5], "tools.0: Input should be a valid dictionary"),
        ([{"type": "web_search"}], "tools: 0.type: "),
        ([{"type": "function"}], "tools: 0.function: Field required"),
        ([WEATHER, {"type": "function", "function": {}}], "tools: 1.function.name: "),
        ([{"type": "function", "function": {"name": "a b"}}], "tools: 0.function.name: "),
        (
            [{"type": "function", "function": {"name": "f", "parameters": []}}],
            "tools: 0.function.parameters: ",
        ),
        ([WEATHER] * (MAX_TOOLS + 1), "tools: Tuple should have at most 128 items"),
        ([{**WEATHER, "more": "x" * MAX_TOOLS_BYTES}], f"tools: must be at most {MAX_TOOLS_BYTES}"),
        ([{**WEATHER, "more": nested(40)}], "tools: must not be nested more than 32 levels"),
        ([{**WEATHER, "more": nested(5000)}], "tools: must not be nested more than 32 levels"),
        ([{**WEATHER, "more": b"x"}], "tools: must be JSON: it holds bytes"),
        ([{**WEATHER, "more": {1: 2}}], "tools: must be JSON: the names of fields are texts"),
        ([{**WEATHER, "more": float("inf")}], "tools: must be JSON: a number is not finite"),
    ],
)
def test_a_wrong_tool_is_named(tools: object, says: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        job(tools=tools)
    assert says in str(caught.value)


@pytest.mark.parametrize("prompt", ["x", [1, 2]])
def test_tools_are_for_chats(prompt: object) -> None:
    with pytest.raises(InvalidParameter, match="tools are only for a prompt of chat messages"):
        job(prompt, tools=[WEATHER])


def test_no_binary_comes_in_a_tool() -> None:
    # given
    fields = {"id": "0-a", "prompt": CHAT, "tools": [{**WEATHER, "more": b"x"}]}
    # then: before anything of it is looked at
    with pytest.raises(MalformedMessage, match="it has binary"):
        decode_job(msgpack.packb(fields))


def test_what_the_template_is_told_survives_the_wire() -> None:
    # given
    given = job(chat_template_kwargs={"enable_thinking": False, "about": [None, {"n": 1.5}]})
    # then
    assert decode_job(encode_job(given)) == given


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (5, "Input should be a valid dictionary"),
        ({"tools": []}, "'tools' is no variable that a chat template may be given"),
        ({"chat_template": "x"}, "'chat_template' is no variable that a chat template may be"),
        ({"a-b": 1}, "'a-b' can be no variable of a template"),
        ({"": 1}, "'' can be no variable of a template"),
        ({"a": nested(40)}, "must not be nested more than 32 levels"),
        ({"a": b"x"}, "must be JSON: it holds bytes"),
        ({"a": float("nan")}, "must be JSON: a number is not finite"),
        (
            {"a": "x" * MAX_TEMPLATE_KWARGS_BYTES},
            f"must be at most {MAX_TEMPLATE_KWARGS_BYTES} bytes as JSON",
        ),
    ],
)
def test_what_a_template_cannot_be_told_is_named(told: object, says: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        job(chat_template_kwargs=told)
    assert str(caught.value).startswith("chat_template_kwargs")
    assert says in str(caught.value)


def test_a_plain_prompt_has_no_template_to_tell_anything() -> None:
    with pytest.raises(InvalidParameter, match="chat_template_kwargs are only for a prompt of"):
        job("text", chat_template_kwargs={"enable_thinking": False})
