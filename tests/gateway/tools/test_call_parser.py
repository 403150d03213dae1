"""Calls in what a model writes: the same parts wherever the text is cut, and nothing lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rose_gateway.tools.call_parser import (
    Arguments,
    CallBegun,
    CallEnded,
    CallsParser,
    NamedParser,
    Parser,
    Part,
    Text,
    TextParser,
    joined,
)
from rose_gateway.tools.tools import FORMATS, CallForm

NAMES = frozenset({"weather", "f-2"})
FORMS = [
    CallForm(),
    CallForm("named", ("weather",)),
    CallForm("required", tuple(sorted(NAMES))),
    CallForm("hermes", tuple(sorted(NAMES))),
    CallForm("llama3_json", tuple(sorted(NAMES))),
]


def run(parser: Parser, *pieces: str) -> list[Part]:
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined(parts + parser.finish())


def hermes() -> CallsParser:
    return CallsParser(NAMES, FORMATS["hermes"])


def call(index: int, name: str, arguments: str) -> list[Part]:
    return [CallBegun(index, name), Arguments(index, arguments), CallEnded(index, complete=True)]


def text_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


def test_text_without_tools_is_text() -> None:
    said = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'

    parts = run(TextParser(), said[:9], said[9:])

    assert parts == [Text(said)]


def test_a_named_function_gets_the_whole_text_as_its_arguments() -> None:
    parts = run(NamedParser("weather"), '{"place": "Os', 'lo}"}')

    assert parts == call(0, "weather", '{"place": "Oslo}"}')


@pytest.mark.parametrize("said", ["", '{"place": "Os'])
def test_arguments_that_were_cut_off_are_not_complete(said: str) -> None:
    parts = run(NamedParser("weather"), said)

    assert parts[0] == CallBegun(0, "weather")
    assert parts[-1] == CallEnded(0, complete=False)


def test_required_calls_stand_on_lines() -> None:
    said = '{"name": "weather", "arguments": {"a": [1, {}]}}\n{"name": "f-2", "arguments": {}}'

    parts = run(CallsParser(NAMES), said)

    assert parts == call(0, "weather", '{"a": [1, {}]}') + call(1, "f-2", "{}")


@pytest.mark.parametrize(
    "said",
    [
        "Hello",
        '{"name": "other", "arguments": {}}',
        '{"name": "weather", "arg',
        '{"name": "weather", "arguments": 3}',
        "[]",
        "  ",
    ],
)
def test_what_is_no_required_call_is_text(said: str) -> None:
    assert run(CallsParser(NAMES), said) == [Text(said)]


def test_text_after_a_required_call_is_kept() -> None:
    said = '{"name": "f-2", "arguments": {}} and more'

    parts = run(CallsParser(NAMES), said)

    assert parts == [*call(0, "f-2", "{}"), Text(" and more")]


@pytest.mark.parametrize("rest", ["\n", '\n{"na', '\n{"name": "weather", "argum'])
def test_a_further_required_call_that_was_cut_off_is_no_text(rest: str) -> None:
    parts = run(CallsParser(NAMES), '{"name": "f-2", "arguments": {}}' + rest)

    assert parts == call(0, "f-2", "{}")


def test_a_required_call_is_told_while_its_arguments_are_written() -> None:
    parser = CallsParser(NAMES)

    first = parser.feed('{"name": "f-2", "arguments": {"a"')
    second = parser.feed(": 1")

    assert first == [CallBegun(0, "f-2"), Arguments(0, '{"a"')]
    assert second == [Arguments(0, ": 1")]


def test_hermes_calls_stand_among_text() -> None:
    said = (
        "I look. \n<tool_call>\n"
        '{"name": "weather", "arguments": {"place": "</tool_call> \\" {"}}\n</tool_call>\n'
        '<tool_call>{"name": "f-2", "arguments": {}}</tool_call>\n'
    )

    parts = run(hermes(), said)

    place = '{"place": "</tool_call> \\" {"}'
    assert parts == [Text("I look."), *call(0, "weather", place), *call(1, "f-2", "{}")]


def test_hermes_text_after_a_call_is_kept() -> None:
    said = '<tool_call>{"name": "f-2", "arguments": {}}</tool_call>\nThat is all.'

    assert run(hermes(), said) == [*call(0, "f-2", "{}"), Text("\nThat is all.")]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"arguments": {"a": "ä"}, "name": "f-2"}', '{"a": "ä"}'),
        ('{"name": "f-2", "arguments": "{\\"a\\":1}"}', '{"a":1}'),
        ('{"name": "f-2", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"name": "f-2"}', "{}"),
    ],
)
@pytest.mark.parametrize("end", ["</tool_call>", "\n</tool_call>", ""])
def test_hermes_calls_in_another_order_are_calls(body: str, arguments: str, end: str) -> None:
    assert run(hermes(), "<tool_call>" + body + end) == call(0, "f-2", arguments)


@pytest.mark.parametrize("end", ["", "}", "}\n", "}\n</tool", "</tool_call>"])
def test_a_hermes_call_may_lack_its_end(end: str) -> None:
    said = '<tool_call>{"name": "f-2", "arguments": {"a": 1}' + end

    assert run(hermes(), said) == call(0, "f-2", '{"a": 1}')


@pytest.mark.parametrize(
    "said",
    [
        "1 < 2 <tool <tool_cal",
        " \n ",
        "<tool_call>",
        "a <tool_call> no call </tool_call> b",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f-2", "arguments": [</tool_call>',
        '<tool_call>{"name": "wea',
        "<tool_call></tool_call>",
    ],
)
def test_what_is_no_hermes_call_is_text(said: str) -> None:
    assert run(hermes(), said) == [Text(said)]


@pytest.mark.parametrize("between", ["", "\n", "; ", " ;"])
def test_llama_s_calls_have_parameters(between: str) -> None:
    said = '{"name": "weather", "parameters": {"a": 1}}' + between
    said += '{"name": "f-2", "parameters": {}}'

    parts = run(CallsParser(NAMES, FORMATS["llama3_json"]), said)

    assert parts == call(0, "weather", '{"a": 1}') + call(1, "f-2", "{}")


@pytest.mark.parametrize(
    "said", ["Rain.", '{"a": 1}', ';{"name": "f-2", "parameters": {}}', '{"name": "f-2"}']
)
def test_what_is_no_call_of_llama_s_is_text(said: str) -> None:
    assert run(CallsParser(NAMES, FORMATS["llama3_json"]), said) == [Text(said)]


def test_text_is_not_held_back_for_long() -> None:
    parser = hermes()

    assert parser.feed("Once upon ") == [Text("Once upon")]
    assert parser.feed("a") == [Text(" a")]
    assert sum(len(part.text) for part in parser.feed("\n" * 1000)) >= 900  # type: ignore[union-attr]


pieces = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            '{"name": ',
            '"weather"',
            '"f-2"',
            '"other"',
            ', "arguments": ',
            ', "parameters": ',
            ";",
            '{"a": [1, "}"]}',
            "{}",
            "{",
            "}",
            '"',
            "\\",
            "\n",
            " ",
            "<",
            "x",
            "ü",
            '{"name": "weather", "arguments": {"a": 1}}',
            '{"name": "weather", "parameters": {"a": 1}}',
            '<tool_call>{"name": "f-2", "arguments": {}}</tool_call>',
        ]
    ),
    max_size=14,
).map("".join)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
@given(said=pieces, data=st.data())
@example(said="x" + " " * 200 + "<tool_call>", data=None)
def test_where_the_text_is_cut_changes_nothing(
    form: CallForm, said: str, data: st.DataObject
) -> None:
    cuts = (
        list(range(len(said)))
        if data is None
        else sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=12)))
    )
    cut = [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]

    whole, in_pieces, by_letters = (
        run(form.parser(), *given) for given in ([said], cut, list(said))
    )

    assert whole == in_pieces == by_letters


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
@given(said=pieces)
def test_text_and_arguments_are_the_model_s_own_words_in_order(form: CallForm, said: str) -> None:
    parts = run(form.parser(), said)

    position = 0
    for part in parts:
        # A call in another order is written anew.
        if isinstance(part, Text) or (isinstance(part, Arguments) and part.text in said):
            position = said.index(part.text, position) + len(part.text)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
@given(said=pieces)
def test_what_is_left_out_only_wraps_calls(form: CallForm, said: str) -> None:
    parts = run(form.parser(), said)
    calls = [part for part in parts if isinstance(part, CallBegun)]

    if not calls:
        assert text_of(parts) == said
    begun = ended = 0
    for part in parts:
        match part:
            case CallBegun(index):
                assert index == begun == ended
                begun += 1
            case CallEnded(index):
                assert index == ended == begun - 1
                ended += 1
            case Arguments(index):
                assert index == begun - 1 == ended
            case Text():
                assert begun == ended
    assert begun == ended


@given(
    st.lists(
        st.tuples(
            st.text(alphabet=st.characters(exclude_characters="<"), max_size=8).map(str.strip),
            st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.integers(), max_size=3),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_hermes_output_is_read_back(turns: list[tuple[str, dict[str, object]]]) -> None:
    said, expected = "", []
    for index, (before, arguments) in enumerate(turns):
        source = json.dumps(arguments)
        said += before + "\n<tool_call>\n"
        said += '{"name": "f-2", "arguments": ' + source + "}\n</tool_call>"
        expected += ([Text(before)] if before else []) + call(index, "f-2", source)

    assert run(hermes(), said) == expected
