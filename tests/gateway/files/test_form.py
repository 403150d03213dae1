"""Uploads as they come: multipart forms in any order, in any pieces, whole or broken."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_gateway.files.form import UploadForm, shown_name
from rose_gateway.requests.bad_request import BadRequest

NAMES = frozenset({"purpose", "seconds"})
KIND = "multipart/form-data; boundary=xYz"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    head = f'--xYz\r\ncontent-disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode() + value + b"\r\n"


END = b"--xYz--\r\n"
FILE = part("file", b'{"a": 1}\n', "in.jsonl")
PURPOSE = part("purpose", b"batch")


async def pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def read(body: bytes, size: int = 64, kind: str = KIND) -> tuple[bytes, UploadForm]:
    form = UploadForm(kind, pieces(body, size), NAMES)
    content = b"".join([chunk async for chunk in form.file()])
    return content, form


@pytest.mark.parametrize("size", [1, 3, 17, 10_000])
@pytest.mark.parametrize("order", ["file first", "file last"])
async def test_a_form_is_read_in_any_order(size: int, order: str) -> None:
    parts = [FILE, PURPOSE, part("seconds", b"3600")]
    if order == "file last":
        parts.reverse()

    content, form = await read(b"".join(parts) + END, size)

    assert content == b'{"a": 1}\n'
    assert form.fields == {"purpose": "batch", "seconds": "3600"}
    assert form.filename == "in.jsonl"


@given(
    st.lists(st.sampled_from([b"\r\n", b"--", b"-", b"xYz", b"\r", b"\n", b"a", b"\0"])).map(
        b"".join
    ),
    st.integers(1, 40),
)
async def test_any_content_comes_through(content: bytes, size: int) -> None:
    if b"\r\n--xYz" in b"\r\n" + content:
        return  # it has the boundary in it: no client sends that

    read_, _ = await read(part("file", content, "f") + END, size)

    assert read_ == content


@given(st.binary(max_size=300) | st.permutations([FILE, PURPOSE, END, b"--xYz"]).map(b"".join))
async def test_what_is_no_form_is_refused_and_does_no_harm(body: bytes) -> None:
    try:
        content, form = await read(body, 7)
    except BadRequest:
        return
    assert form.filename
    assert content in body


@pytest.mark.parametrize(
    ("body", "kind", "param", "says"),
    [
        (FILE + PURPOSE, KIND, None, "ends in its middle"),
        (FILE[:-4], KIND, None, "ends in its middle"),
        (PURPOSE[:20], KIND, None, "ends in its middle"),
        (b"", KIND, None, "ends in its middle"),
        (PURPOSE + END, KIND, "file", "is required and missing"),
        (part("file", b"no filename") + END, KIND, "file", "with a filename"),
        (FILE + FILE + END, KIND, "file", "twice"),
        (FILE + PURPOSE + PURPOSE + END, KIND, "purpose", "twice"),
        (part("colour", b"red") + FILE + END, KIND, "colour", "no such parameter"),
        (part("purpose", b"b" * 600) + FILE + END, KIND, "purpose", "longer than"),
        (part("purpose", b"\xff") + FILE + END, KIND, "purpose", "UTF-8"),
        (b"{}", "application/json", "file", "multipart/form-data"),
        (FILE + END, "multipart/form-data", "file", "multipart/form-data"),
        (FILE + END, "multipart/form-data; boundary=" + "b" * 300, None, "no multipart form"),
        (FILE + END, "multipart/form-data; boundary=other", None, "no multipart form"),
        (b"--xYz\r\n" + b"a: b\r\n" * 100 + FILE + END, KIND, None, "no multipart form"),
        (b"--xYz\r\na: " + b"b" * 10_000 + END, KIND, None, "no multipart form"),
    ],
)
async def test_a_wrong_form_is_refused_with_the_field(
    body: bytes, kind: str, param: str | None, says: str
) -> None:
    with pytest.raises(BadRequest, match=says) as told:
        await read(body, kind=kind)
    assert told.value.param == param


@pytest.mark.parametrize(
    ("given_name", "shown"),
    [
        ("in.jsonl", "in.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\in.jsonl", "in.jsonl"),
        ("/", "upload"),
        ("..", "upload"),
        ("", "upload"),
        ("a\r\nset-cookie: b\0\x1b[31m", "aset-cookie: b[31m"),
        ("\u202egpj.exe", "gpj.exe"),
        ("a%22b", 'a"b'),
        ("Ключ 日本.jsonl", "Ключ 日本.jsonl"),
        ("x" * 999, "x" * 255),
    ],
)
def test_a_filename_is_a_name_and_no_path(given_name: str, shown: str) -> None:
    assert shown_name(given_name) == shown
