"""The text of a custom tool, read from the JSON that a model writes, wherever that is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_gateway.tools.text_input import TextInputReader, arguments_of


def read(*pieces: str) -> str:
    reader = TextInputReader()
    return "".join([*map(reader.feed, pieces), reader.finish()])


@given(st.text(), st.booleans(), st.data())
def test_a_text_comes_back_wherever_its_json_is_cut(
    text: str, ascii_only: bool, data: st.DataObject
) -> None:
    # given
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    places = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=4)))
    pieces = [
        written[start:end] for start, end in zip([0, *places], [*places, len(written)], strict=True)
    ]

    # then
    assert read(*pieces) == text
    assert read(*written) == text
    assert read(arguments_of(text)) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"input":"a"}', "a"),
        (' { "input" : "a" , "more": 1}', "a"),
        ('{"input": "a\\nb', "a\nb"),
        ('{"input": "a\\', "a"),
        ('{"input": "a\\u00', "a"),
        ('{"input": "\\ud83d\\ude00"}', "\U0001f600"),
        ('{"input": "\\ud83dx"}', "\ufffdx"),
        ('{"input": "\\ud83d\\n"}', "\ufffd\n"),
        ('{"input": "\\ud83d\\ud83d\\ude00"}', "\ufffd\U0001f600"),
        ('{"input": "\\ud83d\\u0041"}', "\ufffdA"),
        ('{"input": "\\ude00"}', "\ufffd"),
        ('{"input": "\\ud83d', "\ufffd"),
        ('{"input": "\\u12_3"}', "\ufffd"),
        ('{"input": "\\q"}', "q"),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('{"inp', '{"inp'),
        ("*** Begin Patch", "*** Begin Patch"),
        ("", ""),
    ],
)
def test_what_is_cut_off_or_of_another_shape_is_read_as_far_as_it_goes(
    written: str, text: str
) -> None:
    assert read(written) == text
    assert read(*written) == text
