"""Thoughts in what a model writes: the same parts wherever the text is cut."""

import pytest

from rose.formats.parts import CallBegun, CallEnded, Part, Text, Thought, joined
from rose.formats.registry import TOOL_FORMATS, parser_of

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def run(*pieces: str, cut: bool = False) -> list[Part]:
    parser = parser_of(TOOL_FORMATS["hermes"].parser(frozenset("f"), {}), "think")
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined(parts + parser.finish(cut=cut))


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("<think>\nHm.\n</think>\n\nHi", [Thought("Hm."), Text("Hi")]),
        (" \n<think>ä</think>Hi", [Thought("ä"), Text("Hi")]),
        ("<think>\n\n</think>\n\nHi", [Text("Hi")]),
        # its end may be missing
        ("<think>1 < 2 </thi", [Thought("1 < 2 </thi")]),
        ("<think>", []),
        # only where nothing stands before it
        ("I <think></think>", [Text("I <think></think>")]),
        ("  <thin", [Text("  <thin")]),
        (" " * 70 + "<think>", [Text(" " * 70 + "<think>")]),
        ("<think>a</think>b<think>c</think>", [Thought("a"), Text("b<think>c</think>")]),
        # a call in a thought is thought of, and not made
        (f"<think>{CALL}</think>Hi", [Thought(CALL), Text("Hi")]),
        ("", []),
    ],
)
def test_thoughts_are_read_out_of_what_a_model_writes(said: str, parts: list[Part]) -> None:
    assert run(said) == parts
    assert all(run(said[:i], said[i:]) == parts for i in range(len(said)))
    assert run(*said) == parts


def test_a_call_may_follow_a_thought() -> None:
    parts = run(f"<think>Hm</think>\n{CALL}")

    assert parts[:2] == [Thought("Hm"), CallBegun(0, "f")]
    assert parts[-1] == CallEnded(0, complete=True)


def test_it_is_known_where_a_thought_goes_on() -> None:
    # given
    parser = parser_of(None, "think")
    # when
    thinking = []
    for character in "<think>a</think>b":
        parser.feed(character)
        thinking.append(parser.thinking)
    # then: from the end of the one tag to the end of the other
    assert thinking == [False] * 6 + [True] * 9 + [False] * 2
