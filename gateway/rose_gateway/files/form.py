"""An upload as it comes: the fields of a multipart form, and its one file in pieces.

The file may stand before the fields, as openai-node sends it, so nothing may wait for them.
"""

import unicodedata
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from rose_gateway.requests.bad_request import BadRequest

_FILE = "file"
_MAX_VALUE_BYTES = 512
_MAX_NAME = 64
_MAX_FILENAME = 255
#: Where a client names a file by nothing that can be shown.
_NO_NAME = "upload"


@dataclass(slots=True)
class _Part:
    """What the parser has found of one part and nobody has taken yet."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    begun: bool = False
    """its headers are there"""
    data: list[bytes] = field(default_factory=list)
    ended: bool = False

    @property
    def options(self) -> Mapping[bytes, bytes]:
        return parse_options_header(self.headers.get(b"content-disposition", b""))[1]


class UploadForm:
    """`fields` has those that have come so far, `filename` the file's when it has begun."""

    def __init__(
        self, content_type: str, body: AsyncIterator[bytes], names: frozenset[str]
    ) -> None:
        """`names`: of the fields that there may be beside the file.

        Raises: BadRequest
        """
        self.fields: dict[str, str] = {}
        self.filename = ""
        self._names = names
        self._body = body
        self._parts: deque[_Part] = deque()
        self._header = b""
        self._value = b""
        self._complete = False
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise BadRequest("the body must be a form: content-type multipart/form-data", _FILE)
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": lambda: self._parts.append(_Part()),
                    "on_header_begin": self._on_header_begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise _malformed(error) from None

    async def file(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the file. Fields before it are there when the first of them comes, all
        others at the end.

        Raises: BadRequest, and what reading the body raises.
        """
        while (part := await self._next_part()) is not None:
            name = self._checked_name(part)
            if name == _FILE:
                async for data in self._content(part):
                    yield data
            else:
                self.fields[name] = await self._field_value(name, part)
        if not self._complete:
            raise BadRequest("the form ends in its middle", code="invalid_form")
        if not self.filename:
            raise BadRequest(
                "file: is required and missing", _FILE, code="missing_required_parameter"
            )

    def _checked_name(self, part: _Part) -> str:
        """Raises: BadRequest: no such field, or the same again."""
        options = part.options
        name = options.get(b"name", b"").decode("utf-8", "replace")[:_MAX_NAME]
        if name != _FILE and name not in self._names:
            raise BadRequest(f"{name}: no such parameter", name, code="unknown_parameter")
        if name in self.fields or (name == _FILE and self.filename):
            raise BadRequest(f"{name}: stands in the form twice", name)
        if name == _FILE:
            if b"filename" not in options:
                raise BadRequest("file: must be a file, with a filename", _FILE)
            self.filename = shown_name(options[b"filename"].decode("utf-8", "replace"))
        return name

    async def _field_value(self, name: str, part: _Part) -> str:
        value = b""
        async for data in self._content(part):
            value += data
            if len(value) > _MAX_VALUE_BYTES:
                raise BadRequest(f"{name}: is longer than {_MAX_VALUE_BYTES} bytes", name)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise BadRequest(f"{name}: is not UTF-8", name) from None

    async def _next_part(self) -> _Part | None:
        """The next part, whose headers are there; None: there is none."""
        while not self._parts or not self._parts[0].begun:
            if not await self._parse_more():
                return None
        return self._parts[0]

    async def _content(self, part: _Part) -> AsyncGenerator[bytes, None]:
        while True:
            data, part.data = part.data, []
            for piece in data:
                yield piece
            if part.ended and not part.data:
                self._parts.popleft()
                return
            if not part.data and not await self._parse_more():
                raise BadRequest("the form ends in its middle", code="invalid_form")

    async def _parse_more(self) -> bool:
        """Parse the next bytes of the body. False: there are none."""
        try:
            data = await anext(self._body)
        except StopAsyncIteration:
            return False
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(error) from None
        return True

    # The parser's callbacks

    def _on_header_begin(self) -> None:
        self._header, self._value = b"", b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._parts[-1].headers[self._header.lower()] = self._value

    def _on_headers_finished(self) -> None:
        self._parts[-1].begun = True

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._parts[-1].data.append(data[start:end])

    def _on_part_end(self) -> None:
        self._parts[-1].ended = True

    def _on_end(self) -> None:
        self._complete = True


def shown_name(given: str) -> str:
    """A name and no path, without what a terminal or a header would obey. Nothing is stored under
    it."""
    name = given.replace("%22", '"').replace("\\", "/").rpartition("/")[2]
    plain = "".join(char for char in name if not unicodedata.category(char).startswith("C"))
    plain = plain.strip()[:_MAX_FILENAME]
    return plain if plain.strip(".") else _NO_NAME


def _malformed(error: FormParserError) -> BadRequest:
    return BadRequest(f"the body is no multipart form: {error}"[:200], code="invalid_form")
