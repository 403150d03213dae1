"""The lines of a batch's input: cut from a file in flat memory, and what each requests."""

from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.json_body import json_object
from rose_gateway.requests.parsing import parse
from rose_gateway.requests.sampling import RequestModel

MAX_CUSTOM_ID = 512
#: Of a line whose custom_id is looked for.
_MAX_NESTING = 100

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    """in the file, from 1; lines without anything on them count, though nothing reads them"""
    end: int
    """bytes of the file up to its end, the line break included"""
    raw: bytes
    """without the line break; of a line that is too long, what the limit allows"""
    too_long: bool = False


class LineRequest(RequestModel):
    """A request of a batch, as OpenAI writes it."""

    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_CUSTOM_ID)]
    method: Literal["POST"]
    url: Endpoint
    body: dict[str, Any]


def read_request(line: Line, *, max_nesting: int, endpoint: str | None = None) -> LineRequest:
    """`max_nesting`: of its body. `endpoint`: the one of the batch, where it has one.

    Raises:
        BadRequest: `code` and `param` say why.
    """
    if line.too_long:
        raise BadRequest(f"the line is longer than {len(line.raw)} bytes", code="line_too_long")
    request = parse(LineRequest, line.raw, name="the line", max_nesting=max_nesting + 1)
    if endpoint not in (None, request.url):
        raise BadRequest(
            f"url: the line asks for {request.url}, and its batch is for {endpoint}",
            "url",
            code="mismatched_endpoint",
        )
    return request


def custom_id_of(line: Line) -> str | None:
    """Of a line that need not be right; None where it cannot be read."""
    try:
        custom_id = json_object(line.raw, max_nesting=_MAX_NESTING).get("custom_id")
    except BadRequest:
        return None
    is_valid = isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_CUSTOM_ID
    return custom_id if is_valid else None


async def read_lines(
    chunks: AsyncIterable[bytes], *, start: int = 0, first: int = 1, max_line_bytes: int
) -> AsyncGenerator[Line, None]:
    """The lines that are not blank. No more than a chunk and a line is held.

    `chunks`: the file from the byte `start` on, which begins the line with the number `first`.
    """
    number, end = first, start
    partial = _PartialLine(max_line_bytes)
    async for chunk in chunks:
        position = 0
        while (line_break := chunk.find(b"\n", position)) >= 0:
            partial.add(chunk[position:line_break])
            end += partial.length + 1
            if (line := partial.line(number, end)) is not None:
                yield line
            number, position = number + 1, line_break + 1
            partial = _PartialLine(max_line_bytes)
        partial.add(chunk[position:])
    if (line := partial.line(number, end + partial.length)) is not None:
        yield line


class _PartialLine:
    """A line whose end has not come yet."""

    def __init__(self, max_bytes: int) -> None:
        self.length = 0
        self._room = max_bytes
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        self.length += len(piece)
        if piece and self._room:
            self._pieces.append(piece[: self._room])
            self._room -= len(self._pieces[-1])

    def line(self, number: int, end: int) -> Line | None:
        """None for a blank one."""
        raw = b"".join(self._pieces)
        too_long = len(raw) < self.length
        if number == 1:
            raw = raw.removeprefix(BOM_UTF8)
        if not too_long and not raw.strip():
            return None
        return Line(number, end, raw, too_long)
