"""The lines of a batch: cut from a file in flat memory, checked, counted, answered."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from array import array
from codecs import BOM_UTF8
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from rose import transport
from rose.errors import BrokerUnavailable, RedisFull, RoseError, StorageUnavailable
from rose_gateway.errors import ApiError
from rose_gateway.jobs.job_group import JobGroup
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import compact, json_object, parse
from rose_gateway.requests.sampling import RequestModel
from rose_gateway.storage.batch_repository import Problem


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    """of its line"""
    custom_id: str | None
    """None where the line cannot be read"""
    record: bytes
    """a line of JSON without its line break"""
    succeeded: bool
    """it belongs into the output; else into the error file, and the record says `line` too"""
    unkept: JobGroup | None = None
    """its job was not to be stored"""

    async def delivered(self) -> None:
        """Call this when the record has been written. Raises: BrokerUnavailable"""
        if self.unkept is not None:
            await self.unkept.delete()


class AnswerWriter:
    """Makes the answers of one batch."""

    def __init__(self, batch_id: str) -> None:
        self._batch = batch_id.removeprefix("batch_")

    def request_id(self, line: Line) -> str:
        return f"batch_req_{self._batch}_{line.number}"

    def answered(
        self,
        line: Line,
        custom_id: str,
        body: Mapping[str, Any],
        *,
        status: int,
        succeeded: bool,
        group: JobGroup | None = None,
    ) -> Answer:
        """What the API would have answered. `group`: of the job, where there was one."""
        response = {
            "status_code": status,
            "request_id": f"req_{group.id}" if group else self.request_id(line),
            "body": body,
        }
        kept = group is None or group.own_record.store
        unkept = None if kept else group
        return self._answer(line, custom_id, succeeded, unkept, response=response, error=None)

    def unanswered(
        self, line: Line, custom_id: str | None, code: str | None, message: str, param: str | None
    ) -> Answer:
        """For a line that was not sent."""
        error = {"code": code, "message": message, "param": param}
        return self._answer(line, custom_id, False, None, response=None, error=error)

    def refused(self, line: Line, custom_id: str | None, error: ApiError) -> Answer:
        """For a line that is none."""
        return self.unanswered(line, custom_id, error.code, error.message, error.param)

    def _answer(
        self,
        line: Line,
        custom_id: str | None,
        succeeded: bool,
        unkept: JobGroup | None,
        **outcome: Mapping[str, Any] | None,
    ) -> Answer:
        fields: dict[str, Any] = {"id": self.request_id(line), "custom_id": custom_id, **outcome}
        if not succeeded:
            fields["line"] = line.number
        record = compact(fields).encode("utf-8", "replace")
        return Answer(line.number, custom_id, record, succeeded, unkept)


log = logging.getLogger("rose.gateway")

T = TypeVar("T")

#: Errors that pass by themselves.
UNAVAILABLE: tuple[type[RoseError], ...] = (BrokerUnavailable, RedisFull, StorageUnavailable)


async def retry_while_unavailable(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that may be repeated, until it is answered."""
    outage = transport.Outage(transport.BATCH)
    waits = False
    while True:
        try:
            return await call()
        except UNAVAILABLE as error:
            if not waits:
                log.warning("a batch waits: %s", error)
            waits = True
            pause_s = outage.next_pause_s(error)
        await asyncio.sleep(pause_s)


MAX_CUSTOM_ID = 512
#: Of a line whose custom_id is looked for.
_MAX_NESTING = 100

Endpoint = Literal[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
]


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


#: Problems that are told of one batch.
_MAX_PROBLEMS = 100
_YIELD_BYTES = 64 * 1024


CustomIdOf = Callable[[Line], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class InputCheck:
    total: int
    """lines that are to be answered"""
    problems: Sequence[Problem]
    """why the batch cannot be run; a line that is only wrong in itself is none"""


async def check_input(
    lines: AsyncIterator[Line], *, max_lines: int, custom_id_of: CustomIdOf
) -> InputCheck:
    """Memory: 12 bytes a line. Raises: what `lines` and `custom_id_of` raise."""
    total = unyielded = 0
    hashes, numbers = array("Q"), array("L")
    async for line in lines:
        if line.number > max_lines:
            message = f"the file has more than {max_lines} lines: make several batches of it"
            return InputCheck(total, [Problem("too_many_lines", message, line.number)])
        total += 1
        unyielded += len(line.raw)
        if unyielded > _YIELD_BYTES:  # others have to be served meanwhile
            unyielded = 0
            await asyncio.sleep(0)
        if (custom_id := await custom_id_of(line)) is not None:
            digest = hashlib.blake2b(custom_id.encode(errors="surrogatepass"), digest_size=8)
            hashes.append(int.from_bytes(digest.digest()))
            numbers.append(line.number)
    if total == 0:
        return InputCheck(0, [Problem("empty_file", "the file has no lines")])
    problems = [
        Problem(
            "duplicate_custom_id",
            "an earlier line has the same custom_id: nobody could tell their answers apart",
            number,
            "custom_id",
        )
        for number in _repeats(hashes, numbers)
    ]
    return InputCheck(total, problems)


def _repeats(hashes: array[int], numbers: array[int]) -> Iterator[int]:
    """Numbers of the first lines whose hash an earlier line has."""
    ordered = sorted(hashes)
    repeated = {one for one, other in pairwise(ordered) if one == other}
    seen: set[int] = set()
    count = 0
    for hash_, number in zip(hashes, numbers, strict=True) if repeated else ():
        if hash_ in seen:
            yield number
            count += 1
            if count == _MAX_PROBLEMS:
                return
        elif hash_ in repeated:
            seen.add(hash_)
