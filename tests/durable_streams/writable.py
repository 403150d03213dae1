"""The writing half of the protocol, for its conformance tests: a stream is a job, and what is
appended to it are tokens that a hand-played worker writes. Reads are the gateway's, untouched."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from rose.protocol import FinishedEvent, TokenEvent, calls, encode_event
from rose.protocol.calls import Lease
from tests.support.bench import Bench

#: Of one connection only.
_HOP_BY_HOP = {"connection", "transfer-encoding", "date", "server"}
_TIMEOUT_S = 120


@dataclass(slots=True)
class _Written:
    lease: Lease
    media_type: str
    tokens: int = 0


class WritableStreams:
    """By path, in front of a gateway that serves the bench's queue."""

    def __init__(self, bench: Bench, gateway_port: int) -> None:
        self._bench = bench
        self._gateway_port = gateway_port
        self._written: dict[str, _Written] = {}
        self._lock = threading.Lock()

    def create(self, path: str, media_type: str, body: bytes, *, closes: bool) -> bool:
        """False: it was there."""
        with self._lock:
            if path in self._written:
                return False
            self._bench.client.submit("x", job_id=_job_id(path))
            self._written[path] = _Written(self._bench.start("w"), media_type)
            self._append(path, body, closes=closes)
            return True

    def append(self, path: str, body: bytes, *, closes: bool) -> bool:
        """False: it is not there."""
        with self._lock:
            if path not in self._written:
                return False
            self._append(path, body, closes=closes)
            return True

    def _append(self, path: str, body: bytes, *, closes: bool) -> None:
        written = self._written[path]
        events = []
        for text in _texts(written.media_type, body):
            events.append(TokenEvent(index=written.tokens, token_ids=(1,), text=text))
            written.tokens += 1
        end = FinishedEvent(index=written.tokens, reason="eos", prompt_tokens=1) if closes else None
        if events or end:
            first = written.tokens - len(events)
            raw = [encode_event(event) for event in events]
            item = calls.Append(written.lease, first, [1] * len(raw), raw, end)
            assert self._bench.publish([item]) == ["OK"]

    @contextmanager
    def asked(
        self, method: str, path: str, query: str = "", headers: dict[str, str] | None = None
    ) -> Iterator[HTTPResponse]:
        """What the gateway answers."""
        written = self._written.get(path)
        is_json = written is not None and written.media_type.startswith("application/json")
        url = f"/v1/jobs/{_job_id(path)}/stream/{'events' if is_json else 'text'}"
        connection = HTTPConnection("127.0.0.1", self._gateway_port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, f"{url}?{query}" if query else url, headers=headers or {})
            yield connection.getresponse()
        finally:
            connection.close()


def _job_id(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:32]


def _texts(media_type: str, body: bytes) -> list[str]:
    if not body:
        return []
    if not media_type.startswith("application/json"):
        return [body.decode("utf-8", "replace")]
    value = json.loads(body)
    return [json.dumps(message) for message in (value if isinstance(value, list) else [value])]


class _Handler(BaseHTTPRequestHandler):
    streams: WritableStreams

    def do_PUT(self) -> None:
        path = urlsplit(self.path).path
        media_type = self.headers.get("content-type") or "application/octet-stream"
        is_new = self.streams.create(path, media_type, self._body(), closes=self._closes())
        host = self.headers["host"]
        self._written(201 if is_new else 200, path, location=f"http://{host}{path}")

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        is_there = self.streams.append(path, self._body(), closes=self._closes())
        self._written(204 if is_there else 404, path)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        given = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in {"host", "connection"}
        }
        with self.streams.asked(self.command, url.path, url.query, given) as answer:
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self._end()
            try:
                while piece := answer.read1(65536):
                    self.wfile.write(piece)
            except (BrokenPipeError, ConnectionResetError):
                return  # the reader has gone

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_OPTIONS(self) -> None:
        self.do_GET()

    def _written(self, status: int, path: str, **headers: str) -> None:
        with self.streams.asked("HEAD", path) as answer:
            said = {name.lower(): value for name, value in answer.getheaders()}
        self.send_response_only(status)
        for name in ("stream-next-offset", "stream-closed"):
            if name in said:
                self.send_header(name, said[name])
        for name, value in headers.items():
            self.send_header(name, value)
        self._end()

    def _end(self) -> None:
        self.send_header("connection", "close")
        self.end_headers()

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding"):
            raise AssertionError("the tests send whole bodies")
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def _closes(self) -> bool:
        return self.headers.get("stream-closed", "").lower() == "true"

    def log_message(self, *_: Any) -> None:
        """Not among what pytest shows."""


@contextmanager
def writable_streams(bench: Bench, gateway_port: int) -> Iterator[str]:
    """The URL before all paths."""
    streams = WritableStreams(bench, gateway_port)
    handler = type("Handler", (_Handler,), {"streams": streams, "protocol_version": "HTTP/1.1"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
