"""OpenAI's messages as those of a job."""

import json
from typing import Any

import pytest

from rose.protocol import ChatMessage
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import Message, chat_messages, check_chat
from rose_gateway.requests.parsing import parse
from rose_gateway.requests.sampling import RequestModel


class Request(RequestModel):
    messages: list[Message]


def converted(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return chat_messages(parse(Request, json.dumps({"messages": messages}).encode()).messages)


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_every_role_arrives() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Be brief.", "name": "boss"},
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "assistant", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL | {"id": "call_2"}]},
        {"role": "tool", "content": "42", "tool_call_id": "call_1"},
        {"role": "tool", "content": "43", "tool_call_id": "call_2", "name": "f"},
    ]

    assert converted(*messages) == messages


def calling(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": i} for i in ids]}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


USER = {"role": "user", "content": "Go on"}


def test_results_stand_in_the_order_of_their_calls() -> None:
    # given: ids that come again in later turns, and calls in messages of their own
    messages = [
        calling("a", "b", "c"),
        *(result("c", "3"), result("a", "1"), result("b", "2")),
        calling("b", "a"),
        *(result("a", "5"), result("b", "4")),
        *(calling("x"), calling("y")),
        *(result("y", "7"), result("x", "6")),
        USER,
    ]
    # when
    told = [message["content"] for message in converted(*messages) if message["role"] == "tool"]
    # then
    assert told == ["1", "2", "3", "4", "5", "6", "7"]


def test_calls_that_nobody_answered_may_stand_there() -> None:
    messages = [calling("a", "b"), USER, calling("a"), USER, result("a", "late"), calling("z")]

    assert converted(*messages) == messages


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ([calling("a"), result("b", "1")], "messages[1].tool_call_id", "'b'"),
        ([calling("a"), result("a", "1"), result("a", "2")], "messages[2].tool_call_id", "two"),
        (
            [calling("a"), result("a", "1"), USER, result("a", "2")],
            "messages[3].tool_call_id",
            "no",
        ),
        ([calling("a", "b"), result("b", "1"), USER], "messages[1].tool_call_id", "'a'"),
        ([calling("a", "b"), result("b", "1")], "messages[1].tool_call_id", "'a'"),
        ([calling("a", "a"), result("a", "1")], "messages[0].tool_calls", "two calls"),
        ([calling("a"), USER, calling("b"), result("a", "1")], "messages[3].tool_call_id", "'a'"),
    ],
)
def test_results_that_belong_to_no_call_or_to_two_are_refused(
    messages: list[dict[str, Any]], param: str, says: str
) -> None:
    with pytest.raises(BadRequest, match=says) as caught:
        converted(*messages)

    assert caught.value.param == param


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_what_belongs_to_other_roles_may_be_null(role: str) -> None:
    nothing = dict.fromkeys(("name", "refusal", "tool_calls", "tool_call_id", "function_call"))

    assert converted({"role": role, "content": "a", **nothing}) == [{"role": role, "content": "a"}]


def test_what_belongs_to_other_roles_is_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        converted({"role": "user", "content": "a", "tool_calls": [CALL]})

    assert str(caught.value) == "messages[0].tool_calls: no such parameter"
    assert caught.value.param == "messages[0].tool_calls"


def test_parts_of_text_become_lines() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "input_text", "text": "b"},
        {"type": "output_text", "text": "c", "annotations": []},
    ]

    assert converted({"role": "user", "content": parts}) == [{"role": "user", "content": "a\nb\nc"}]


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [CALL],
        "parsed": None,
    }

    assert converted(answer) == [{"role": "assistant", "content": "", "tool_calls": [CALL]}]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a": 1e999}', '{"a": 1e999}'),
        ('{"a": ', '{"INVALID_JSON": "{\\"a\\": "}'),  # cut off by the length
        ('{"a": NaN}', '{"INVALID_JSON": "{\\"a\\": NaN}"}'),
        ("[1]", '{"INVALID_JSON": "[1]"}'),
        ("", "{}"),  # a function without parameters, as some servers write its calls
        (" \n", "{}"),
    ],
)
def test_arguments_of_a_call_become_an_object_for_the_chat_template(
    written: str, read: str
) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": written}}

    (message,) = converted({"role": "assistant", "tool_calls": [call]})

    assert message["tool_calls"][0]["function"]["arguments"] == read
    ChatMessage.model_validate(message)


def test_a_refusal_is_what_was_said() -> None:
    parts = [{"type": "refusal", "refusal": "No."}]

    assert converted({"role": "assistant", "content": parts}) == converted(
        {"role": "assistant", "refusal": "No."}
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "king", "content": "x"}, "messages[0].role"),
        ({"role": "function", "content": "x", "name": "f"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": "x", "mood": "good"}, "messages[0].mood"),
        ({"role": "assistant"}, "messages[0].content"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "messages[0].audio"),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]},
            "messages[0].tool_calls[0].type",
        ),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": "call_9"}, "messages[0].tool_call_id"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        converted(message)

    assert refused.value.param == param


def test_a_model_without_a_template_says_what_to_do() -> None:
    with pytest.raises(BadRequest, match="/v1/completions") as refused:
        check_chat("base", "0")

    assert refused.value.param == "model"
    check_chat("base", "1")
    check_chat("base", None)
