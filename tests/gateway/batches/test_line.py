"""From a file's bytes to lines, and from a line to its request."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_gateway.batches.line import Line, custom_id_of, read_request
from rose_gateway.requests.bad_request import BadRequest
from tests.support.batch_lines import CHAT, COMPLETIONS, cut, raw_line

_SIZES = st.lists(st.integers(0, 9), max_size=30)


@given(st.lists(st.sampled_from([b"a", b"{}", b" ", b"\n", b"\r\n", b"\xc3"]), max_size=40), _SIZES)
async def test_lines_are_the_same_however_the_file_is_cut(
    pieces: list[bytes], sizes: list[int]
) -> None:
    # given
    data = b"".join(pieces)
    # when
    lines = await cut(data, sizes)
    # then
    rows = data.split(b"\n")
    assert [(line.number, line.raw) for line in lines] == [
        (number, row) for number, row in enumerate(rows, 1) if row.strip()
    ]
    for line in lines:
        assert data[: line.end].removesuffix(b"\n").endswith(line.raw)


@given(st.lists(st.sampled_from([b"a", b"bc", b"", b"  "]), min_size=1, max_size=12), st.data())
async def test_reading_goes_on_behind_any_line(rows: list[bytes], data: st.DataObject) -> None:
    # given
    file = b"\n".join(rows)
    lines = await cut(file, [])
    done = data.draw(st.integers(0, len(lines)))
    # when
    start, first = (lines[done - 1].end, lines[done - 1].number + 1) if done else (0, 1)
    rest = await cut(file[start:], [3], start=start, first=first)
    # then
    assert rest == lines[done:]


async def test_of_a_line_that_is_too_long_only_its_beginning_is_held() -> None:
    lines = await cut(b"x" * 2500 + b"\nshort\n", [700, 700, 700], max_line_bytes=1000)

    assert lines == [Line(1, 2501, b"x" * 1000, too_long=True), Line(2, 2507, b"short")]


async def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    lines = await cut(b"\xef\xbb\xbf{}\n{}", [1])

    assert [line.raw for line in lines] == [b"{}", b"{}"]


def test_a_line_says_its_request() -> None:
    request = read_request(Line(1, 0, raw_line("a", {"model": "m"}, CHAT)), max_nesting=10)

    assert (request.custom_id, request.url, request.body) == ("a", CHAT, {"model": "m"})


_BODY = {"model": "m"}


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"not JSON", "invalid_value", None),
        (b"[1]", "invalid_value", None),
        (b'{"custom_id": "a"', "invalid_value", None),
        (b"\xff\xfe", "invalid_value", None),
        (raw_line("", _BODY), "invalid_value", "custom_id"),
        (raw_line("a" * 513, _BODY), "invalid_value", "custom_id"),
        (raw_line("a", _BODY, method="GET"), "invalid_value", "method"),
        (raw_line("a", _BODY, "/v1/images/generations"), "invalid_value", "url"),
        (raw_line("a", [1]), "invalid_value", "body"),
        (raw_line("a", _BODY, extra=1), "unknown_parameter", "extra"),
        (raw_line("a", _BODY, CHAT), "mismatched_endpoint", "url"),
        (b'{"method": "POST"}', "missing_required_parameter", "custom_id"),
        (raw_line("a", json.loads('{"a":' * 11 + "1" + "}" * 11)), "invalid_json", None),
    ],
)
def test_a_line_that_is_no_request_is_refused(raw: bytes, code: str, param: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        read_request(Line(1, len(raw), raw), max_nesting=10, endpoint=COMPLETIONS)

    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize(
    ("raw", "found"),
    [(raw_line("a", 3), "a"), (b'{"custom_id": 3}', None), (b"[]", None), (b"{", None)],
)
def test_the_custom_id_of_a_wrong_line_is_told_where_there_is_one(
    raw: bytes, found: str | None
) -> None:
    assert custom_id_of(Line(1, len(raw), raw)) == found
