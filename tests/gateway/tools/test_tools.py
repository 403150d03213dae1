"""What a request says of functions: grammars for llguidance, and refusals that name the field."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from rose.formats.parts import Arguments, CallBegun, CallEnded
from rose.formats.registry import TOOL_FORMATS
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import parse
from rose_gateway.requests.sampling import RequestModel
from rose_gateway.tools.tools import (
    CallForm,
    ChatTool,
    ChatToolChoice,
    Choice,
    Function,
    calls_grammar,
    chat_choice,
    chat_functions,
    plan_tools,
)
from tests.rose.formats.writers import FAMILIES, Answer, Call

WEATHER = {
    "type": "object",
    "properties": {"place": {"$ref": "#/$defs/place"}},
    "required": ["place"],
    "additionalProperties": False,
    "$defs": {"place": {"enum": ["Oslo", 'the "Rome"\n']}},
}


class Request(RequestModel):
    tools: list[ChatTool]
    tool_choice: ChatToolChoice | None = None


def tool(name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def functions(*tools: dict[str, Any]) -> list[Function]:
    return chat_functions(parse(Request, json.dumps({"tools": tools}).encode()).tools)


def chosen(choice: dict[str, Any] | None) -> Choice:
    given = json.dumps({"tools": [], "tool_choice": choice}).encode()
    return chat_choice(parse(Request, given).tool_choice, has_tools=True)


@pytest.fixture(scope="module")
def alphabet() -> LLTokenizer:
    return LLTokenizer("byte")


def accepts(alphabet: LLTokenizer, grammar: str, text: str) -> bool:
    matcher = LLMatcher(alphabet, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = alphabet.tokenize_bytes(text.encode())
    return matcher.validate_tokens(tokens) == len(tokens) and _ends(matcher, tokens)


def _ends(matcher: LLMatcher, tokens: list[int]) -> bool:
    assert matcher.consume_tokens(tokens)
    return matcher.is_accepting()


OSLO = '{"name": "weather", "arguments": {"place": "Oslo"}}'


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        (OSLO, True),
        (OSLO.replace('"Oslo"', json.dumps('the "Rome"\n')), True),
        ('{"name": "no-arguments", "arguments": {}}', True),
        (OSLO + "\n" + OSLO, True),
        (OSLO.replace("Oslo", "Bonn"), False),
        (OSLO.replace("weather", "whether"), False),
        (OSLO[:-1], False),
        (OSLO + OSLO, False),
        ("Oslo", False),
        ("\n".join([OSLO] * 9), False),
    ],
)
def test_required_calls_fit_their_grammar(alphabet: LLTokenizer, said: str, fits: bool) -> None:
    grammar = calls_grammar(
        functions(tool(parameters=WEATHER), tool("no-arguments")), parallel=True
    )

    assert accepts(alphabet, grammar, said) is fits


def test_one_call_is_all_where_calls_are_not_parallel(alphabet: LLTokenizer) -> None:
    grammar = calls_grammar(functions(tool(parameters=WEATHER)), parallel=False)

    assert accepts(alphabet, grammar, OSLO)
    assert not accepts(alphabet, grammar, OSLO + "\n" + OSLO)


def test_what_fits_the_grammar_is_read_as_calls() -> None:
    plan = plan_tools(functions(tool(parameters=WEATHER)), Choice("required"), tool_format="")

    parser = CallForm.from_record(json.loads(json.dumps(plan.form.as_record()))).parser()

    assert parser.feed(OSLO) + parser.finish(cut=False) == [
        CallBegun(0, "weather"),
        Arguments(0, '{"place": "Oslo"}'),
        CallEnded(0, complete=True),
    ]


def test_a_named_function_is_its_schema() -> None:
    choice = chosen({"type": "function", "function": {"name": "weather"}})

    plan = plan_tools(functions(tool("other"), tool(parameters=WEATHER)), choice, tool_format="")

    assert plan.form == CallForm("named", ("weather",))
    assert json.loads(plan.sampling["json_schema"]) == WEATHER
    assert [d["function"]["name"] for d in plan.definitions] == ["weather"]


def test_parameters_are_an_object_whether_they_say_so_or_not() -> None:
    bare, none = functions(tool(parameters={"properties": {"a": {}}}), tool("b"))

    assert bare.schema == {"type": "object", "properties": {"a": {}}}
    assert none.schema["additionalProperties"] is False


def test_auto_leaves_the_model_free() -> None:
    plan = plan_tools(functions(tool()), Choice("auto"), tool_format="hermes")

    assert plan.form == CallForm("hermes", ("weather",))
    assert plan.sampling == {}
    assert plan.stop == ()
    assert plan.definitions[0]["type"] == "function"


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_auto_without_parallel_calls_ends_after_the_first(tool_format: str) -> None:
    # given
    plan = plan_tools(functions(tool()), Choice("auto"), tool_format=tool_format, parallel=False)
    family = next(one for one in FAMILIES.values() if one.tool_format == tool_format)
    calls = [Call("weather", {"place": "Oslo"}), Call("weather", {"place": "Rome"})]
    # when: a model says more than one
    parser = CallForm.from_record(plan.form.as_record()).parser()
    parts = [part for one in family.write(Answer(calls=calls)) for part in parser.feed(one)]
    # then
    parts += parser.finish(cut=False)
    assert [type(part) for part in parts if not isinstance(part, Arguments)] == [
        CallBegun,
        CallEnded,
    ]
    assert plan.lazy["grammar_once"]


@pytest.mark.parametrize(("is_default", "param"), [(True, "tools"), (False, "tool_choice")])
def test_auto_needs_a_known_format(is_default: bool, param: str) -> None:
    with pytest.raises(BadRequest, match="required") as refused:
        plan_tools(functions(tool()), Choice("auto"), tool_format="", is_default=is_default)

    assert refused.value.param == param


def test_no_choice_means_auto_with_tools_and_none_without() -> None:
    assert chat_choice(None, has_tools=True).mode == "auto"
    assert chat_choice(None, has_tools=False).mode == "none"
    assert plan_tools([], Choice("none"), tool_format="").form == CallForm()
    assert plan_tools(functions(tool()), Choice("none"), tool_format="").definitions == ()


def test_allowed_tools_are_the_only_ones() -> None:
    allowed = {"mode": "required", "tools": [tool("b")]}
    choice = chosen({"type": "allowed_tools", "allowed_tools": allowed})

    plan = plan_tools(functions(tool("a"), tool("b")), choice, tool_format="")

    assert plan.form == CallForm("required", ("b",))


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([tool("a b")], "tools[0].function.name"),
        ([tool(""), tool("a")], "tools[0].function.name"),
        ([tool("a"), tool("a")], "tools[1].function.name"),
        ([tool(parameters={"type": "array"})], "tools[0].function.parameters.type"),
        ([tool(parameters={"enum": ["x" * 70_000]})], "tools[0].function.parameters"),
        ([{"type": "custom", "custom": {}}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([tool(arguments={})], "tools[0].function.arguments"),
    ],
)
def test_impossible_tools_are_refused_by_their_place(
    tools: list[dict[str, Any]], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        functions(*tools)

    assert refused.value.param == param


@pytest.mark.parametrize("choice", [Choice("required"), Choice("named", ("weather",))])
def test_a_choice_needs_tools(choice: Choice) -> None:
    with pytest.raises(BadRequest) as refused:
        plan_tools([], choice, tool_format="hermes")

    assert refused.value.param == "tool_choice"


def test_many_large_tools_are_too_much_for_one_grammar() -> None:
    many = [tool(f"f{i}", parameters={"enum": ["x" * 3000]}) for i in range(40)]

    with pytest.raises(BadRequest) as refused:
        plan_tools(functions(*many), Choice("required"), tool_format="")

    assert refused.value.param == "tools"
