"""Calls in what a model writes: the same parts wherever the text is cut, and nothing lost."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rose.formats.parts import (
    Arguments,
    CallBegun,
    CallCut,
    CallEnded,
    Part,
    Text,
    joined,
)
from rose_gateway.tools.tools import CallForm

NAMES = frozenset({"weather", "f-2"})
FORMS = [
    CallForm(),
    CallForm("named", ("weather",)),
    CallForm("required", tuple(sorted(NAMES))),
    CallForm("hermes", tuple(sorted(NAMES))),
    CallForm("llama3_json", tuple(sorted(NAMES))),
]


BY_KIND = {form.kind: form for form in FORMS}


def run(form: CallForm, *pieces: str, cut: bool = False) -> list[Part]:
    parser = form.parser()
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined(parts + parser.finish(cut=cut))


def call(index: int, name: str, arguments: str) -> list[Part]:
    return [CallBegun(index, name), Arguments(index, arguments), CallEnded(index, complete=True)]


def text_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


REQUIRED = '{"name": "f-2", "arguments": {}}'
LLAMA = '{"name": "f-2", "parameters": {}}'
TAGGED = f"<tool_call>{REQUIRED}</tool_call>"
F_2 = call(0, "f-2", "{}")
PLACE = '{"place": "</tool_call> \\" {"}'


@pytest.mark.parametrize(
    ("kind", "said", "parts"),
    [
        ("text", TAGGED, [Text(TAGGED)]),
        # the whole text is its arguments
        ("named", '{"place": "Oslo}"}', call(0, "weather", '{"place": "Oslo}"}')),
        # calls stand on lines, and text after them is kept
        (
            "required",
            '{"name": "weather", "arguments": {"a": [1, {}]}}\n' + REQUIRED,
            call(0, "weather", '{"a": [1, {}]}') + call(1, "f-2", "{}"),
        ),
        ("required", REQUIRED + " and more", [*F_2, Text(" and more")]),
        # a further one that was cut off is no text
        ("required", REQUIRED + "\n", F_2),
        ("required", REQUIRED + '\n{"na', [*F_2, CallCut()]),
        ("required", REQUIRED + '\n{"name": "weather", "argum', [*F_2, CallCut()]),
        # calls stand among text
        (
            "hermes",
            'I look. \n<tool_call>\n{"name": "weather", "arguments": '
            + PLACE
            + f"}}\n</tool_call>\n{TAGGED}\n",
            [Text("I look."), *call(0, "weather", PLACE), *call(1, "f-2", "{}")],
        ),
        ("hermes", TAGGED + "\nThat is all.", [*F_2, Text("\nThat is all.")]),
        # its end may be missing
        *(
            ("hermes", '<tool_call>{"name": "f-2", "arguments": {"a": 1}' + end, found)
            for found in [call(0, "f-2", '{"a": 1}')]
            for end in ("", "}", "}\n", "}\n</tool", "</tool_call>")
        ),
        # in another order, as text, by another name, without arguments
        *(
            ("hermes", "<tool_call>" + body + end, call(0, "f-2", arguments))
            for body, arguments in (
                ('{"arguments": {"a": "ä"}, "name": "f-2"}', '{"a": "ä"}'),
                ('{"name": "f-2", "arguments": "{\\"a\\":1}"}', '{"a":1}'),
                ('{"name": "f-2", "parameters": {"a": 1}}', '{"a": 1}'),
                ('{"name": "f-2"}', "{}"),
            )
            for end in ("</tool_call>", "\n</tool_call>", "")
        ),
        *(
            (
                "llama3_json",
                '{"name": "weather", "parameters": {"a": 1}}' + between + LLAMA,
                call(0, "weather", '{"a": 1}') + call(1, "f-2", "{}"),
            )
            for between in ("", "\n", "; ", " ;")
        ),
    ],
)
def test_calls_are_read_out_of_what_a_model_writes(kind: str, said: str, parts: list[Part]) -> None:
    assert run(BY_KIND[kind], said) == parts


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("required", "Hello"),
        ("required", '{"name": "other", "arguments": {}}'),
        ("required", '{"name": "weather", "arg'),
        ("required", '{"name": "weather", "arguments": 3}'),
        ("required", "[]"),
        ("required", "  "),
        ("hermes", "1 < 2 <tool <tool_cal"),
        ("hermes", " \n "),
        ("hermes", "<tool_call>"),
        ("hermes", "a <tool_call> no call </tool_call> b"),
        ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f-2", "arguments": [</tool_call>'),
        ("hermes", '<tool_call>{"name": "wea'),
        ("hermes", "<tool_call></tool_call>"),
        ("llama3_json", "Rain."),
        ("llama3_json", '{"a": 1}'),
        ("llama3_json", ";" + LLAMA),
        ("llama3_json", '{"name": "f-2"}'),
    ],
)
def test_what_is_no_call_is_text(kind: str, said: str) -> None:
    assert run(BY_KIND[kind], said) == [Text(said)]


TEXT = [Text("Well.")]


@pytest.mark.parametrize(
    ("kind", "said", "parts"),
    [
        *(("required", REQUIRED[:end], [CallCut()]) for end in range(1, REQUIRED.index("{}"))),
        *(("llama3_json", LLAMA[:end], [CallCut()]) for end in range(1, LLAMA.index("{}"))),
        *(
            ("hermes", "Well. " + TAGGED[:end], [*TEXT, CallCut()])
            for end in range(2, TAGGED.index("{}"))
        ),
        ("hermes", 'Well. <tool_call>{"arguments": {"a": 1}, "na', [*TEXT, CallCut()]),
        ("hermes", TAGGED + "\n<tool_ca", [*F_2, CallCut()]),
        ("required", REQUIRED + '\n{"na', [*F_2, CallCut()]),
        # text that may go on as it likes
        ("hermes", "1 <", [Text("1 <")]),
        ("hermes", "Well. ", [Text("Well. ")]),
        ("llama3_json", "Rain", [Text("Rain")]),
        ("llama3_json", '{"a": 1', [Text('{"a": 1')]),
        ("text", "<tool_call>", [Text("<tool_call>")]),
        # whole calls
        ("required", REQUIRED + "\n", F_2),
        ("required", REQUIRED[:-1], F_2),
        ("hermes", TAGGED[:-3], F_2),
    ],
)
def test_a_call_that_was_cut_off_before_its_arguments_is_no_text(
    kind: str, said: str, parts: list[Part]
) -> None:
    assert run(BY_KIND[kind], said, cut=True) == run(BY_KIND[kind], *said, cut=True) == parts


@pytest.mark.parametrize("said", ["", '{"place": "Os'])
def test_arguments_that_were_cut_off_are_not_complete(said: str) -> None:
    parts = run(BY_KIND["named"], said)

    assert parts[0] == CallBegun(0, "weather")
    assert parts[-1] == CallEnded(0, complete=False)


def test_a_required_call_is_told_while_its_arguments_are_written() -> None:
    parser = BY_KIND["required"].parser()

    first = parser.feed('{"name": "f-2", "arguments": {"a"')
    second = parser.feed(": 1")

    assert first == [CallBegun(0, "f-2"), Arguments(0, '{"a"')]
    assert second == [Arguments(0, ": 1")]


def test_text_is_not_held_back_for_long() -> None:
    parser = BY_KIND["hermes"].parser()

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

    whole, in_pieces, by_letters = (run(form, *given) for given in ([said], cut, list(said)))

    assert whole == in_pieces == by_letters


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
@given(said=pieces)
def test_text_and_arguments_are_the_model_s_own_words_in_order(form: CallForm, said: str) -> None:
    parts = run(form, said)

    position = 0
    for part in parts:
        # A call in another order is written anew.
        if isinstance(part, Text) or (isinstance(part, Arguments) and part.text in said):
            position = said.index(part.text, position) + len(part.text)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
@given(said=pieces)
def test_what_is_left_out_only_wraps_calls(form: CallForm, said: str) -> None:
    parts = run(form, said)
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

    assert run(BY_KIND["hermes"], said) == expected
