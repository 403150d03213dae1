"""Custom tools with OpenAI's library: what the model gives them fits their grammars."""

import re
from typing import Any

import pytest
from openai import OpenAI

from tests.gateway.sdk.deployments import CHAT

DATE = {"type": "grammar", "syntax": "regex", "definition": r'2[0-9]{3}/"[01][0-9]"\n'}
SUM = {
    "type": "grammar",
    "syntax": "lark",
    "definition": 'start: n ("+" n){1,2} LF\nn: /[0-9]{1,3}/\n%import common.LF\n',
}
#: Recursive: it is followed where the text stands alone.
NESTED = {"type": "grammar", "syntax": "lark", "definition": 'start: "(" start ")" | "x"'}
FITS = {"date": r'2[0-9]{3}/"[01][0-9]"\n', "sum": r"\d{1,3}(\+\d{1,3}){1,2}\n"}


def tool(name: str, form: dict[str, Any]) -> dict[str, Any]:
    return {"type": "custom", "name": name, "format": form}


ADD = {
    "type": "function",
    "name": "add",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    },
}


def respond(client: OpenAI, tools: list[dict[str, Any]], choice: Any, seed: int) -> Any:
    return client.responses.create(
        model=CHAT,
        input="Call something.",
        tools=tools,  # type: ignore[arg-type]
        tool_choice=choice,
        max_output_tokens=400,
        extra_body={"seed": seed},
    )


@pytest.mark.parametrize(("name", "form"), [("date", DATE), ("sum", SUM)])
def test_a_named_tool_is_given_what_its_grammar_allows(
    client: OpenAI, name: str, form: dict[str, Any]
) -> None:
    for seed in range(3):
        response = respond(client, [tool(name, form)], {"type": "custom", "name": name}, seed)
        (call,) = response.output
        assert (call.type, call.name) == ("custom_tool_call", name)
        assert re.fullmatch(FITS[name], call.input), call.input


@pytest.mark.parametrize("name", FITS)
def test_among_several_tools_each_keeps_its_grammar(client: OpenAI, name: str) -> None:
    # given
    tools = [tool("date", DATE), ADD, tool("sum", SUM), tool("free", {"type": "text"})]
    only = [{"type": "custom", "name": name}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": only}

    # when
    calls = [call for seed in range(2) for call in respond(client, tools, choice, seed).output]

    # then
    assert {call.name for call in calls} == {name}
    whole = [call.input for call in calls if call.status == "completed"]
    assert whole
    assert all(re.fullmatch(FITS[name], text) for text in whole), whole


def test_a_recursive_grammar_is_followed_where_the_text_stands_alone(client: OpenAI) -> None:
    response = respond(client, [tool("nest", NESTED)], {"type": "custom", "name": "nest"}, 1)

    (call,) = response.output
    assert re.fullmatch(r"\(*x?\)*", call.input)
