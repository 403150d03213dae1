"""Event streams as they are on the wire."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from tests.support.bench import wait_until

_ACCEPTED = {"accept": "text/event-stream"}


class SentEvent(NamedTuple):
    id: str | None
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def events_of(lines: Iterator[str]) -> Iterator[SentEvent]:
    """The events of a stream, without its comments."""
    event_id, data = None, []
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            event_id = value
        elif name == "data":
            data.append(value)
        elif not line and data:
            yield SentEvent(event_id, "\n".join(data))
            event_id, data = None, []


@contextmanager
def event_stream(
    method: str, url: str, headers: Mapping[str, str] | None = None, body: Any = None
) -> Iterator[tuple[httpx2.Response, Iterator[SentEvent]]]:
    """A response and its events as they come. Leaving early closes the connection."""
    with (
        httpx2.Client(timeout=60) as client,
        client.stream(method, url, headers=_ACCEPTED | dict(headers or {}), json=body) as response,
    ):
        yield response, events_of(_lines(response))


def leave_when(
    reached: Callable[[], bool], url: str, body: Any, headers: Mapping[str, str] | None = None
) -> None:
    """POST the bytes that `httpx2.post(url, json=body)` would, and close the connection without an
    answer as soon as this is true."""
    place, data = urlsplit(url), json.dumps(body, separators=(",", ":")).encode()
    given = {
        "host": place.netloc,
        "content-type": "application/json",
        "content-length": str(len(data)),
        **(headers or {}),
    }
    lines = [f"POST {place.path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    with socket.create_connection((place.hostname, place.port), timeout=90) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        wait_until(reached)


def _lines(response: httpx2.Response) -> Iterator[str]:
    """Lines end with a line feed and nothing else."""
    rest = ""
    for text in response.iter_text():
        *lines, rest = (rest + text).split("\n")
        yield from lines
