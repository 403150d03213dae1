"""Connections that cost little, whatever their clients do or leave undone.

uvicorn waits for a request without end. Here a request's headers and body must come in time.
Headers are bounded, and so are what stands around a body and the number of connections: one more
closes the one that has been waiting longest for a whole request. None whose request is being
answered is closed for another, unless its client takes nothing of the answer while those of others
fill what there is for answers.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rose.web_access import host_of
from rose_gateway.errors import ApiError
from rose_gateway.http import http2
from rose_gateway.http.websocket import Upgrade, WebSocket
from rose_gateway.metrics import Metrics

#: Of the request line and all headers.
_MAX_HEADER_BYTES = 64 * 1024
_MAX_HEADERS = 256
#: Of what stands around a chunked body: lengths of chunks, their extensions, trailers. A chunk of
#: one byte has five bytes around it.
_MAX_FRAMING_BYTES = 64 * 1024
_FRAMING_OF_A_BYTE = 8
#: Requests that a client sends before it has its answers.
_MAX_PIPELINED = 64
#: A whole body may take so many times the longest silence, and longer if it is announced to be
#: long: no line is slower than this.
_BODY_PATIENCE = 10
_MIN_BYTES_PER_S = 100_000
#: After an answer that did not wait for the body: so long the client may read it. A connection that
#: is reset while it still sends loses it for many clients. So this much is taken, then nothing.
_LINGER_S = 2.0
_LINGER_BYTES = 8 * 1024 * 1024

#: Of an answer, that the client's machine has not been sent.
_MAX_UNSENT_BYTES = 64 * 1024
#: What an answer holds beside its unsent bytes: events that were read, and how far they are shown.
_HELD_BYTES = 192 * 1024

_NEVER = float("inf")
_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}
_REASONS[503] = "Service Unavailable"
_TOO_LARGE = (
    431,
    f"the headers exceed {_MAX_HEADER_BYTES} bytes or {_MAX_HEADERS} in number",
    "headers_too_large",
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds."""

    header_s: float
    body_s: float


class _Refused(Exception):
    """A callback of the parser refuses what it was given."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class Connections:
    """All of a server. Belongs to the event loop's thread."""

    def __init__(
        self, max_open: int, timeouts: Timeouts, metrics: Metrics, max_unread_bytes: int
    ) -> None:
        """`max_unread_bytes`: held for clients that do not keep up with their answers."""
        self.timeouts = timeouts
        self.metrics = metrics
        self._max_open = max_open
        self._max_unread_bytes = max_unread_bytes
        self._unread_bytes = 0
        self._unread: OrderedDict[GuardedProtocol, int] = OrderedDict()
        """what is held for each client that does not keep up, the one that has longest taken
        nothing first"""
        self._open: set[GuardedProtocol] = set()
        self._idle: OrderedDict[GuardedProtocol, None] = OrderedDict()
        """those without a whole request, the one that waits longest first"""

    def admit(self, connection: GuardedProtocol) -> bool:
        """False: there are too many, and each is being answered."""
        if len(self._open) >= self._max_open:
            self.metrics.limit_hit("connections")
            if not self._idle:
                return False
            oldest, _ = self._idle.popitem(last=False)
            oldest.abandon()
        self._open.add(connection)
        self._idle[connection] = None
        self.metrics.open_connections.set(len(self._open))
        return True

    def idle(self, connection: GuardedProtocol) -> None:
        """It has been answered and may send another request."""
        if connection in self._open:
            self._idle[connection] = None

    def busy(self, connection: GuardedProtocol) -> None:
        """Its request is whole."""
        self._idle.pop(connection, None)

    def lags(self, connection: GuardedProtocol) -> None:
        """Its client does not keep up with its answer, which waits. Where too much is held for such
        clients, the one that has longest taken nothing loses its connection."""
        self.keeps_up(connection)
        self._hold(connection, connection.unsent_bytes)
        looks = len(self._unread)
        while self._unread_bytes > self._max_unread_bytes and len(self._unread) > 1:
            slowest = next(iter(self._unread))
            before, now = self._unread[slowest], slowest.unsent_bytes
            self.keeps_up(slowest)
            if now + _HELD_BYTES < before and looks > 0:
                self._hold(slowest, now)  # it reads
            else:
                self.metrics.limit_hit("unread")
                slowest.abandon()
            looks -= 1

    def keeps_up(self, connection: GuardedProtocol) -> None:
        """It has taken nearly all, or is gone."""
        self._unread_bytes -= self._unread.pop(connection, 0)

    def _hold(self, connection: GuardedProtocol, unsent_bytes: int) -> None:
        self._unread[connection] = unsent_bytes + _HELD_BYTES
        self._unread_bytes += unsent_bytes + _HELD_BYTES

    def leave(self, connection: GuardedProtocol) -> None:
        self.keeps_up(connection)
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self.metrics.open_connections.set(len(self._open))

    def abandon_all(self) -> None:
        """Close them at once, in mid-answer."""
        for connection in list(self._open):
            connection.abandon()


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with deadlines and bounds."""

    guard: Connections
    """set by `guarded_by`"""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _bound_unsent(transport.get_extra_info("socket"))
        self._deadline = _NEVER
        self._late: Callable[[], None] = self.abandon
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True
        self._in_body = False
        self._body_pieces: list[bytes] = []
        """what the parser has found and the request has not been given"""
        self._framing_bytes = 0
        """of the body: what has come of it, less what the request gets"""
        self._body_began_at = 0.0
        self._body_patience_s = 0.0
        self._lingering = False
        self._deaf = False
        """a request was refused behind one that is being answered: nothing more is read"""
        self._dropped_bytes = 0
        self._size = 0
        """of the request line and the headers so far"""
        self._offered = b""
        """the protocol that the request may become one of"""
        self._answered: RequestResponseCycle | None = None
        """the request whose answer is in the making, or was the last: others may have come since"""
        self._websocket: WebSocket | None = None
        self._http2: bytes | None = None
        """what has come, where a client began with it"""
        if not self.guard.admit(self):
            self._refuse(503, "too many connections: try again", "server_busy")
            return
        self._expect(self.guard.timeouts.header_s, self._headers_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._websocket is not None:
            self._websocket.lost()
        # uvicorn tells the last request of the connection only.
        if self._answered is not None:
            self._answered.disconnected = not self._answered.response_complete
            self._answered.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.guard.lags(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.guard.keeps_up(self)

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def data_received(self, data: bytes) -> None:
        if self._websocket is not None:
            self._websocket.take(data)
            return
        if self._lingering or self._deaf:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > _LINGER_BYTES:
                self.transport.pause_reading()
            return
        if self._http2 is not None:
            self._refuse_http2(data)
            return
        self._unset_keepalive_if_required()
        if self._in_headers:
            if not self._header_bytes:
                self._expect(self.guard.timeouts.header_s, self._headers_late)
            self._header_bytes += len(data)
        elif self._in_body:
            self._framing_bytes += len(data)
            self._expect_body()
        try:
            self._parse(data)
            self._give_body()
        except httptools.HttpParserError as error:
            if isinstance(refused := error.__context__, _Refused):
                self._refuse(refused.status, refused.message, refused.code)
            elif http2.begins_http2(data):
                self._http2 = b""
                self.transport.write(http2.GREETING)
                self._refuse_http2(data)
            else:
                self._refuse(400, "this is no HTTP request", "invalid_request")
        else:
            if self._in_headers and self._header_bytes > _MAX_HEADER_BYTES:
                self._refuse(*_TOO_LARGE)
            elif self._in_body and self._framing_bytes > _MAX_FRAMING_BYTES:
                self._refuse(
                    400, "the body has more around its chunks than in them", "invalid_request"
                )

    def _parse(self, data: bytes) -> None:
        """Raises: HttpParserError"""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[upgrade.args[0] :]
            else:
                return

    def _without_upgrade(self) -> bytes:
        """The head that was just parsed, for a parser that begins anew: this one takes what follows
        for another protocol. A client may offer one with any request, as Java's does with HTTP/2,
        and is answered as if it had not.

        Raises: HttpParserError: it asks for a tunnel, and for nothing else.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("CONNECT")
        self._offered = next((v.lower() for name, v in self.headers if name == b"upgrade"), b"")
        lines = [method + b" " + self.url + b" HTTP/1.1"]
        lines += [b": ".join(header) for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return b"\r\n".join([*lines, b"", b""])

    # The parser's callbacks, in order

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["abandon"] = self.abandon  # type: ignore[typeddict-unknown-key]
        self._in_headers = True
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """What stands after a body is no header: it is counted with the body, and dropped."""
        if not self._in_headers:
            return
        self._size += len(name) + len(value)
        if self._size > _MAX_HEADER_BYTES or len(self.headers) >= _MAX_HEADERS:
            raise _Refused(*_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it comes once more
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _Refused(400, "too many requests before their answers", "invalid_request")
        self._check_host()
        self._in_headers = False
        self._header_bytes = 0
        self._in_body = True
        self._framing_bytes = 0
        self._body_began_at = self.loop.time()
        self._body_patience_s = self._patience_s()
        self._expect_body()
        super().on_headers_complete()
        if not self.pipeline:
            self._answered = self.cycle
        self.cycle.transport = _LingeringTransport(self)  # type: ignore[assignment]
        self.scope["stream_body"] = StreamBody(self.cycle)  # type: ignore[typeddict-unknown-key]
        offered, self._offered = self._offered, b""
        if offered == b"websocket" and (key := self._websocket_key()):
            self.scope["websocket"] = Upgrade(self, key)  # type: ignore[typeddict-unknown-key]

    def _check_host(self) -> None:
        """Raises: _Refused"""
        given = [value for name, value in self.headers if name == b"host"]
        if not given and self.parser.get_http_version() == "1.0":
            return
        if len(given) != 1 or host_of(given[0].decode("latin-1")) is None:
            said = "a request needs one header Host, of a name or an address and perhaps a port"
            raise _Refused(400, said, "invalid_host")
        if not self.url.startswith(b"/") and self.url != b"*":
            # Its authority would go before the header, by which access is decided.
            said = "the target of a request must be a path, without a scheme and a host"
            raise _Refused(400, said, "invalid_request")

    def on_body(self, body: bytes) -> None:
        """Given to the request once for all that comes at a time: a chunk may be a byte."""
        self._body_pieces.append(body)
        self._framing_bytes -= _FRAMING_OF_A_BYTE * len(body)

    def _give_body(self) -> None:
        if self._body_pieces:
            body = b"".join(self._body_pieces)
            self._body_pieces.clear()
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._give_body()
        self._in_headers = True
        self._in_body = False
        self._deadline = _NEVER
        if not self._lingering:
            self.guard.busy(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answered = self.pipeline[-1][0]
        super().on_response_complete()
        if not self.pipeline and not self._in_body and not self.transport.is_closing():
            self.guard.idle(self)

    # As `Connection` of a WebSocket has it

    def _websocket_key(self) -> bytes:
        """Of a request that asks for one in the version that there is; empty for others."""
        headers = dict(self.headers)
        if headers.get(b"sec-websocket-version") != b"13" or self.scope["method"] != "GET":
            return b""
        return headers.get(b"sec-websocket-key", b"")

    def switch(self, socket: WebSocket, head: bytes) -> None:
        """Requests that came behind this one have no answer."""
        self._websocket = socket
        self.pipeline.clear()
        self.cycle = self._answered or self.cycle
        self.cycle.response_started = True
        self.transport.write(head)
        self.rests()

    def rests(self) -> None:
        self.cycle.response_complete = True
        self.guard.idle(self)

    def works(self) -> None:
        self.cycle.response_complete = False
        self.guard.busy(self)

    @property
    def ends(self) -> bool:
        return not self.cycle.keep_alive

    def expect_message(self) -> None:
        self._body_began_at = self.loop.time()
        self._body_patience_s = _BODY_PATIENCE * self.guard.timeouts.body_s
        self._expect(self._body_patience_s, self._body_late)

    def message_ended(self) -> None:
        self._deadline = _NEVER

    # Ends

    def abandon(self) -> None:
        """Close it in the middle of whatever it does."""
        self.transport.abort()

    def close_lingering(self) -> None:
        """Where the client still sends, take some of it, so that it can read its answer."""
        if not self._in_body or not self.transport.can_write_eof():
            self.transport.close()
        elif not self._lingering:
            self._lingering = True
            self.transport.write_eof()
            self.flow.resume_reading()
            self._expect(_LINGER_S, self.abandon)

    def _headers_late(self) -> None:
        if self._header_bytes:
            self.guard.metrics.limit_hit("header_time")
            self._refuse(408, "the request's headers took too long", "request_timeout")
        else:  # it has never said anything
            self.abandon()

    def _body_late(self) -> None:
        self.guard.metrics.limit_hit("body_time")
        if self.cycle.response_started:
            self.abandon()
        else:
            self._refuse(408, "the request's body took too long", "request_timeout")

    @property
    def _answered_before(self) -> RequestResponseCycle | None:
        """A request whose answer has begun, or that came before the one which is being read."""
        answered = self._answered
        if answered is None or answered.response_complete:
            return None
        is_read = self._in_body and answered is self.cycle
        return None if is_read and not answered.response_started else answered

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer without the application, and close; where an earlier request is being answered,
        which that would garble, its answer is the last."""
        if (answered := self._answered_before) is not None:
            answered.keep_alive = False
            self.pipeline.clear()
            self._deaf = True
            self._deadline = _NEVER
            return
        body = json.dumps(ApiError(status, message, code=code).body()).encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _refuse_http2(self, data: bytes) -> None:
        """As soon as there is a request. The client closes, and asks anew or gives up."""
        self._http2 = (self._http2 or b"") + data
        if len(self._http2) > _MAX_HEADER_BYTES:
            self.abandon()
        elif refusal := http2.refusal(self._http2):
            self.transport.write(refusal)
            self._lingering = True
            self._expect(_LINGER_S, self.abandon)

    # Deadlines: one timer at most, which is set anew only when it has fired

    def _expect(self, within_s: float, late: Callable[[], None]) -> None:
        self._late = late
        self._deadline = self.loop.time() + within_s
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(self._deadline, self._on_timer)

    def _expect_body(self) -> None:
        silence_s = self.guard.timeouts.body_s
        left_s = self._body_began_at + self._body_patience_s - self.loop.time()
        self._expect(max(0.0, min(silence_s, left_s)), self._body_late)

    def _patience_s(self) -> float:
        """For the body whose headers are there."""
        announced = next(
            (int(value) for name, value in self.headers if name == b"content-length"), 0
        )
        return _BODY_PATIENCE * self.guard.timeouts.body_s + announced / _MIN_BYTES_PER_S

    def _on_timer(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self._deadline == _NEVER:
            return
        if self.loop.time() >= self._deadline - 0.001:
            self._deadline = _NEVER
            self._late()
        else:
            self._timer = self.loop.call_at(self._deadline, self._on_timer)


def _bound_unsent(connection: socket.socket) -> None:
    """Linux keeps up to 4 MB for a client that reads nothing. What is kept was rendered, too."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)


class StreamBody:
    """Where a streamed answer that has begun writes its chunks: past the layers of the application
    and uvicorn's own, which would take most of the time that a chunk takes."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._chunked = True

    def begin(self) -> None:
        """Before the answer does. A client of HTTP/1.0 knows no chunks: the end of the connection
        is the end of its answer."""
        if self._cycle.scope["http_version"] == "1.0":
            self._chunked = self._cycle.chunked_encoding = False
            self._cycle.keep_alive = False

    def write(self, data: bytes) -> bool:
        """One chunk of the body, not empty: that would end it. Does nothing before the answer has
        begun and once the client has gone. False: the client does not keep up; wait for `flowing`
        before the next chunk."""
        cycle = self._cycle
        if cycle.response_started and not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return not cycle.flow.write_paused

    async def flowing(self) -> None:
        """Returns when the client has taken most of what was written, or has gone."""
        if self._cycle.flow.write_paused and not self._cycle.disconnected:
            await self._cycle.flow.drain()


class _LingeringTransport:
    """What an answer is written to. Its end is a lingering close."""

    def __init__(self, protocol: GuardedProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        self._protocol.close_lingering()


def guarded_by(connections: Connections) -> type[GuardedProtocol]:
    """The protocol class for `uvicorn.Config(http=...)`."""
    members: dict[str, Any] = {"guard": connections}
    return type("GuardedProtocol", (GuardedProtocol,), members)
