"""The reading half of the Durable Streams protocol: any job as a stream of text, or of its events.

https://github.com/durable-streams/durable-streams/blob/main/PROTOCOL.md
"""

import asyncio
import hashlib
import random
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from starlette.responses import Response

from rose_gateway.access.authentication import JOB_ID_HEADER, current_request
from rose_gateway.http.sse import EventStream, while_connected
from rose_gateway.jobs.job_stream import JobStream, Part, View
from rose_gateway.openapi import stream_of
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import compact
from rose_gateway.routes.dependencies import CallerDependency, ServicesDependency

#: How the job ended, beside `Stream-Closed`.
JOB_STATUS_HEADER = "x-rose-job-status"

#: The protocol's: a proxy in front may give one answer to all who wait with the same cursor.
_CURSOR_EPOCH_S = 1_728_432_000  # 2024-10-09
_CURSOR_INTERVAL_S = 20
_MAX_CURSOR_JITTER_S = 3600
#: Seconds after which an event stream ends, as the protocol wants it: its reader comes again.
_CONNECTION_S = 60.0

#: What ends a line in an event stream.
_LINE_END = re.compile(r"\r\n|\r|\n")


async def _guarded() -> None:
    """What a worker wrote is no page, nor a script of one. Errors say so, too."""
    current_request().headers |= {
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
    }


router = APIRouter(tags=["jobs"], dependencies=[Depends(_guarded)])

_PATH = "/v1/jobs/{job_id}/stream/{view}"
_JobId = Annotated[
    str, Path(description="as x-rose-job-id names it; of a further choice, as its job does")
]
_View = Annotated[
    View,
    Path(
        description="text: the answer as text/plain; events: the job's events as application/json"
    ),
]


def _header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


_HEADERS = {
    JOB_ID_HEADER: _header("the job"),
    "stream-next-offset": _header("where to go on reading"),
    "stream-closed": _header("true: the job has ended, and nothing comes after the next offset"),
    JOB_STATUS_HEADER: _header("beside stream-closed: finished, failed or cancelled"),
}
_READ_HEADERS = {
    **_HEADERS,
    "stream-up-to-date": _header("true: the job has no more so far"),
    "stream-cursor": _header("for the `cursor` of the next request; of live reads"),
    "etag": _header("of what was returned"),
}


@router.get(
    _PATH,
    summary="Read a job as a durable stream",
    response_class=Response,
    responses={
        200: {
            "description": "What follows the offset, as much as fits in an answer. With live=sse "
            "events `data` and `control`.",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                "application/json": {"schema": {"type": "array", "items": {"type": "object"}}},
                "text/event-stream": stream_of("of the job, or where it goes on"),
            },
            "headers": _READ_HEADERS,
        },
        204: {"description": "A long poll has brought nothing.", "headers": _READ_HEADERS},
        304: {"description": "The answer that If-None-Match names would come again."},
    },
)
async def read_stream(
    request: Request,
    job_id: _JobId,
    view: _View,
    services: ServicesDependency,
    caller: CallerDependency,
    offset: Annotated[
        str | None,
        Query(description="of an earlier answer; -1: the beginning; now: the end so far"),
    ] = None,
    live: Annotated[
        Literal["long-poll", "sse"] | None,
        Query(description="wait for what is not there yet, or follow it as an event stream"),
    ] = None,
    cursor: Annotated[str, Query(description="of the last live answer")] = "",
    if_none_match: Annotated[str, Header(description="the etag of an earlier answer")] = "",
) -> Response:
    if live is not None and offset is None:
        raise BadRequest(f"offset: live={live} needs it, -1 for the beginning", "offset")
    if len(request.query_params.getlist("offset")) > 1:
        raise BadRequest("offset: is given twice", "offset")
    stream = JobStream(await services.jobs.find(caller, job_id), view)
    start = stream.offset("-1" if offset is None else offset)
    current_request().headers[JOB_ID_HEADER] = job_id
    if live == "sse":
        events = _events(stream, stream.parts(start), cursor)
        return EventStream(events, headers={"content-type": "text/event-stream"}, held=True)
    wait_s = services.settings.heartbeat_s if live == "long-poll" else 0.0
    part = await while_connected(request, _next_part(stream.parts(start), wait_s))
    headers = _headers(stream, part)
    if live is not None and part.end is None:
        headers["stream-cursor"] = _next_cursor(cursor)
    if live is not None and not part.data:
        return Response(status_code=204, headers=headers)
    body = stream.body(part)
    if offset != "now":
        headers["etag"] = etag = _etag(body, headers)
        if live is None:
            headers["cache-control"] = "private, no-cache"
            if _matches(if_none_match, etag):
                return Response(status_code=304, headers=headers)
    return Response(body, headers={**headers, "content-type": stream.media_type})


@router.head(
    _PATH,
    summary="How far a job is as a durable stream",
    response_class=Response,
    responses={200: {"description": "Where it ends so far.", "headers": _HEADERS}},
)
async def stream_metadata(
    job_id: _JobId, view: _View, services: ServicesDependency, caller: CallerDependency
) -> Response:
    stream = JobStream(await services.jobs.find(caller, job_id), view)
    current_request().headers[JOB_ID_HEADER] = job_id
    tail = Part("", stream.tail, is_all=False, end=stream.end)
    headers = {**_headers(stream, tail), "content-type": stream.media_type}
    return Response(headers=headers)


async def _next_part(parts: AsyncGenerator[Part, None], wait_s: float) -> Part:
    """The first part that has data or is the last one. After `wait_s`, or without waiting, the one
    that is there."""
    async with aclosing(parts):
        part = await anext(parts)
        try:
            async with asyncio.timeout(wait_s):
                while wait_s and not part.data and part.end is None:
                    part = await anext(parts)
        except TimeoutError:
            pass
        return part


async def _events(
    stream: JobStream, parts: AsyncGenerator[Part, None], cursor: str
) -> AsyncGenerator[bytes, None]:
    """Pairs of data and where the next ones begin."""
    closes_at = asyncio.get_running_loop().time() + _CONNECTION_S
    has_caught_up = False
    async with aclosing(parts):
        while True:
            try:
                async with asyncio.timeout_at(closes_at):
                    part = await anext(parts)
            except TimeoutError:
                return
            if part.data or part.end or not has_caught_up:
                has_caught_up = part.is_all
                data = _data_event(stream.body(part)) if part.data else ""
                yield f"{data}{_control_event(stream, part, cursor)}".encode()
            if part.end:
                return


def _data_event(body: bytes) -> str:
    # A reader takes one space away at the beginning of a line.
    lines = _LINE_END.split(body.decode())
    return "event: data\n" + "".join(f"data:{_padded(line)}\n" for line in lines) + "\n"


def _padded(line: str) -> str:
    return f" {line}" if line.startswith(" ") else line


def _control_event(stream: JobStream, part: Part, cursor: str) -> str:
    control: dict[str, Any] = {"streamNextOffset": stream.written(part.next)}
    if part.end is None:
        control["streamCursor"] = _next_cursor(cursor)
    if part.is_all:
        control["upToDate"] = True
    if part.end is not None:
        control |= {"streamClosed": True, "jobStatus": part.end}
    return f"event: control\ndata:{compact(control)}\n\n"


def _headers(stream: JobStream, part: Part) -> dict[str, str]:
    headers = {"stream-next-offset": stream.written(part.next), "cache-control": "no-store"}
    if part.is_all:
        headers["stream-up-to-date"] = "true"
    if part.end is not None:
        headers |= {"stream-closed": "true", JOB_STATUS_HEADER: part.end}
    return headers


def _etag(body: bytes, headers: dict[str, str]) -> str:
    """Of the data and of what is said of them: that a job has ended is news."""
    said = [f"{name}:{value}" for name, value in headers.items() if name.startswith("stream-")]
    digest = hashlib.blake2b("\n".join(said).encode() + b"\n\n" + body, digest_size=12)
    return f'"{digest.hexdigest()}"'


def _matches(if_none_match: str, etag: str) -> bool:
    given = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return etag in given or "*" in given


def _next_cursor(given: str) -> str:
    """The number of the present interval, or a later one than the reader's."""
    now = int(time.time() - _CURSOR_EPOCH_S) // _CURSOR_INTERVAL_S
    if given.isascii() and given.isdigit() and len(given) <= 15 and int(given) >= now:
        jitter_s = random.randint(_CURSOR_INTERVAL_S, _MAX_CURSOR_JITTER_S)  # noqa: S311 - no secret
        return str(int(given) + jitter_s // _CURSOR_INTERVAL_S)
    return str(now)
