"""Where a request may say several things, the refusal names the one that was meant."""

import json
from typing import Any

import pytest

from rose_gateway.chat.schema import ChatRequest
from rose_gateway.completions.schema import CompletionRequest
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import parse
from rose_gateway.responses.schema import CreateResponse

MESSAGES = [{"role": "user", "content": "x"}]
TEXTS = "must be a string or an array"


@pytest.mark.parametrize(
    ("model", "fields", "param", "says"),
    [
        *(
            (CompletionRequest, {"prompt": prompt}, param, says)
            for prompt, param, says in (
                ([], "prompt", "at least 1 item"),
                ([[]], "prompt[0]", "at least 1 item"),
                ([-1], "prompt[0]", "greater than or equal to 0"),
                ([1.5], "prompt[0]", "a string or an integer or an array"),
                ([[1], "a"], "prompt[1]", "list"),
                (["a", 1], "prompt[1]", "string"),
                ([1, "a"], "prompt[1]", "integer"),
                ([[1], [2, "a"]], "prompt[1][1]", "integer"),
                ({"a": 1}, "prompt", TEXTS),
                (None, "prompt", TEXTS),
            )
        ),
        *(
            (ChatRequest, {"messages": MESSAGES, "tool_choice": choice}, param, says)
            for choice, param, says in (
                ({"type": "auto"}, "tool_choice.type", "'function' or 'allowed_tools'"),
                ({"type": "allowed_tools"}, "tool_choice.allowed_tools", "missing"),
                ({"type": "function", "function": {}}, "tool_choice.function.name", "missing"),
                ("some", "tool_choice", "'none', 'auto' or 'required' or an object"),
            )
        ),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": {"type": "text"}}]},
            "messages[0].content",
            TEXTS,
        ),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [5]}]},
            "messages[0].content[0]",
            "must be an object",
        ),
        (ChatRequest, {"messages": MESSAGES, "stop": {"a": 1}}, "stop", TEXTS),
        (ChatRequest, {"messages": MESSAGES, "max_tokens": "a"}, "max_tokens", "an integer or -1"),
        *(
            (CreateResponse, fields, param, says)
            for fields, param, says in (
                ({"input": None}, "input", TEXTS),
                ({"input": [{"role": "user", "content": 5}]}, "input[0].content", TEXTS),
                ({"input": [{"type": "function_call"}]}, "input[0].call_id", "missing"),
                (
                    {"input": "x", "tool_choice": {"type": "allowed_tools"}},
                    "tool_choice.mode",
                    "missing",
                ),
                ({"input": "x", "tools": [{"type": "other"}]}, "tools[0].type", "'function'"),
                (
                    {"input": "x", "text": {"format": {"type": "json_schema"}}},
                    "text.format.name",
                    "missing",
                ),
            )
        ),
    ],
)
def test_the_alternative_that_was_meant_is_named(
    model: Any, fields: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(model, json.dumps({"model": "m", **fields}).encode())

    assert refused.value.param == param
    assert str(refused.value).startswith(f"{param}: ")
    assert says in str(refused.value)
