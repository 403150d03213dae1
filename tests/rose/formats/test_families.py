"""Each family's calls and thoughts: read as they were meant, and the same wherever they are cut."""

import json
import random

import pytest

from rose.formats.families.kimi import with_own_ids
from rose.formats.parts import Arguments, CallBegun, CallCut, CallEnded, Part, Text, Thought, joined
from rose.formats.registry import TOOL_FORMATS, parser_of
from tests.rose.formats.writers import ANSWERS, FAMILIES, NAMES, TYPES, Answer, Family, parts_of

_LEAST_TRANSCRIPTS = 40
#: Longer ones repeat the shorter ones.
_CUT_EVERYWHERE = 200


def _positions(said: str) -> range:
    return range(0, len(said), 1 if len(said) <= _CUT_EVERYWHERE else 11)


def run(family: Family, *pieces: str, cut: bool = False) -> list[Part]:
    parser = parser_of(
        TOOL_FORMATS[family.tool_format].parser(NAMES, TYPES),
        family.reasoning_format,
        family.tool_format,
    )
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined(parts + parser.finish(cut=cut))


def as_values(parts: list[Part]) -> list[Part]:
    """With arguments as values, as families write them in different ways."""
    return [
        part._replace(text=json.loads(part.text)) if isinstance(part, Arguments) else part
        for part in parts
    ]


def answers_of(family: Family) -> list[Answer]:
    return [
        answer
        for answer in ANSWERS
        if family.text_beside_calls or not (answer.text and answer.calls)
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_is_read_as_it_was_meant(name: str) -> None:
    family = FAMILIES[name]
    answers = answers_of(family)
    assert len(answers) >= _LEAST_TRANSCRIPTS
    for answer in answers:
        said = family.write(answer)
        assert as_values(run(family, said)) == parts_of(answer), said


@pytest.mark.parametrize("name", FAMILIES)
def test_the_parts_do_not_depend_on_where_it_is_cut(name: str) -> None:
    family = FAMILIES[name]
    for answer in answers_of(family):
        said = family.write(answer)
        whole = run(family, said)
        assert run(family, *said) == whole
        for i in _positions(said):
            assert run(family, said[:i], said[i:]) == whole, (said[:i], said[i:])


@pytest.mark.parametrize("name", FAMILIES)
def test_of_an_answer_that_was_cut_off_nothing_is_made_up(name: str) -> None:
    """Its parts are a beginning of those of the whole, and no tag of a special token shows."""
    family = FAMILIES[name]
    tags = TOOL_FORMATS[family.tool_format].tags
    for answer in answers_of(family):
        said = family.write(answer)
        whole = run(family, said)
        for end in _positions(said):
            for cut in (True, False):
                parts = run(family, said[:end], cut=cut)
                assert parts == run(family, said[: end // 2], said[end // 2 : end], cut=cut)
                _check_beginning(whole, parts, said[:end], cut=cut)
                texts = "".join(part.text for part in parts if isinstance(part, Text))
                assert not any(tag in texts for tag in tags if cut and len(tag) > 1), said[:end]


def _check_beginning(whole: list[Part], parts: list[Part], said: str, *, cut: bool) -> None:
    if cut and parts and parts[-1] == CallCut():
        parts = parts[:-1]
    calls = [part for part in parts if isinstance(part, CallBegun)]
    assert calls == [part for part in whole if isinstance(part, CallBegun)][: len(calls)], said
    for kind in (Thought, Arguments):
        found = [part.text for part in parts if isinstance(part, kind)]
        meant = [part.text for part in whole if isinstance(part, kind)]
        for number, text in enumerate(found):
            is_last = number == len(found) - 1
            assert meant[number] == text or (is_last and text.startswith(meant[number][:1])), said
    ended = [part for part in parts if isinstance(part, CallEnded)]
    assert all(part.complete for part in ended[:-1]), said
    if ended and not ended[-1].complete:
        assert cut or parts[-1] == ended[-1] or not said.endswith("}"), said


def _call(number: int, name: str, arguments: str, *, complete: bool = True) -> list[Part]:
    return [CallBegun(number, name), Arguments(number, arguments), CallEnded(number, complete)]


NOW = _call(0, "now", "{}")


@pytest.mark.parametrize(
    ("name", "said", "parts"),
    [
        # the tag around it is forgotten, or its end
        ("qwen3_xml", "<function=now>\n</function>", NOW),
        ("qwen3_xml", "<tool_call>\n<function=now>\n</tool_call>", NOW),
        ("qwen3_xml", "<tool_call>\n<function=now>\n", NOW),
        ("qwen3_xml", "<tool_call>", [Text("<tool_call>")]),
        # a number for a text, and the other way round
        (
            "qwen3_xml",
            "<function=weather><parameter=place>5</parameter><parameter=days>2.0</parameter>"
            "<parameter=exact>True</parameter><parameter=note>null</parameter></function>",
            _call(0, "weather", '{"place": "5", "days": 2, "exact": true, "note": null}'),
        ),
        ("glm45", "<tool_call>now</tool_call>", NOW),
        ("glm45", "<tool_call>\nnow\n</tool_call>", NOW),
        ("glm45", "<tool_call>other\n</tool_call>", [Text("<tool_call>other\n</tool_call>")]),
        ("minimax_m2", "<invoke name='now'></invoke>", NOW),
        # in another order, as a text, without arguments, a single one
        (
            "mistral, old",
            '[TOOL_CALLS][{"arguments": {"days": 1}, "id": "a", "name": "weather"}]',
            _call(0, "weather", '{"days": 1}'),
        ),
        ("mistral, old", '[TOOL_CALLS][{"name": "now"}]', NOW),
        ("mistral, old", '[TOOL_CALLS]{"name": "now", "arguments": "{}"}', NOW),
        ("mistral, old", "[TOOL_CALLS]Hi", [Text("Hi")]),
        ("mistral, new", "[TOOL_CALLS]now[CALL_ID]a1[ARGS]{}", NOW),
        ("mistral, new", "[TOOL_CALLS]now{}", NOW),
        ("mistral, new", "[THINK]Hm.[TOOL_CALLS]now[ARGS]{}", [Thought("Hm."), *NOW]),
        ("deepseek v3", "<｜tool▁calls▁end｜>Hi", [Text("Hi")]),
        (
            "qwen3_xml",
            "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
            NOW,
        ),
        ("kimi_k2", "<|tool_call_begin|>now:0<|tool_call_argument_begin|>{}", NOW),
        ("kimi_k2", "<|tool_call_begin|>Hi", [Text("Hi")]),
        ("granite", '<tool_call>{"name": "now", "arguments": {}}</tool_call>', NOW),
        ("phi4", "functools is a module", [Text("functools is a module")]),
        ("command_r_plus", "Action: go", [Text("Action: go")]),
        ("pythonic", "<|python_start|>[now()]<|python_end|>", NOW),
        ("pythonic", "[1, 2]", [Text("[1, 2]")]),
        ("pythonic", "[other()]", [Text("[other()]")]),
        (
            "pythonic",
            "[weather(place='it\\'s', exact=True, where={'a': (1, None)},)]",
            _call(0, "weather", '{"place": "it\'s", "exact": true, "where": {"a": [1, null]}}'),
        ),
        ("pythonic", "[weather(days=1+)]", _call(0, "weather", '{"days": "1+"}')),
        ("function_gemma", "<start_function_call>call:now{}", NOW),
        ("function_gemma", "<start_function_call>Hi<end_function_call>", [Text("Hi")]),
        (
            "harmony",
            "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary"
            "<|message|>B<|end|><|start|>assistant<|channel|>final<|message|>C",
            [Thought("A"), Text("B\n\nC")],
        ),
        (
            "harmony",
            "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
            NOW,
        ),
        ("harmony", " to=functions.now<|channel|>commentary<|message|>", NOW),
        ("harmony", "No channel.", [Text("No channel.")]),
        ("harmony", "<|channel|>fin", []),
    ],
)
def test_what_models_do_beside_is_understood(name: str, said: str, parts: list[Part]) -> None:
    family = FAMILIES[name]
    assert run(family, said) == parts
    assert run(family, *said) == parts
    assert all(run(family, said[:i], said[i:]) == parts for i in range(len(said)))


@pytest.mark.parametrize("name", FAMILIES)
def test_any_other_text_is_read_the_same_way_wherever_it_is_cut(name: str) -> None:
    """Its tags in any order."""
    family = FAMILIES[name]
    tags = [*TOOL_FORMATS[family.tool_format].tags, *'[]{}",:', "now", "weather", " ", "a", "\\"]
    draw = random.Random(name)
    for _ in range(60):
        said = "".join(draw.choices(tags, k=draw.randrange(1, 14)))
        for cut in (True, False):
            assert run(family, *said, cut=cut) == run(family, said, cut=cut), said


def test_the_ids_of_calls_are_shown_to_kimi_as_it_writes_them() -> None:
    function = {"name": "now", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function} for name in ("a", "b")]
    answered = [{"role": "tool", "tool_call_id": name, "content": "1"} for name in ("b", "a", "c")]

    made = with_own_ids([{"role": "assistant", "content": "", "tool_calls": calls}, *answered])

    assert [call["id"] for call in made[0]["tool_calls"]] == ["functions.now:0", "functions.now:1"]
    ids = [message["tool_call_id"] for message in made[1:]]
    assert ids == ["functions.now:1", "functions.now:0", "c"]
