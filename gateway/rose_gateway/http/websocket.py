"""Messages over a connection that was asked for as a request, and passed all that a request does.

The frames are wsproto's affair. Here they are bounded: a message in size and in time, how many
wait, and how long a client may take nothing or say nothing. Messages are texts, uncompressed.
"""

import asyncio
import base64
import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from wsproto.frame_protocol import CloseReason, Frame, FrameProtocol, Opcode, ParseFailed

from rose_gateway.errors import ApiError, ClientGone

#: RFC 6455's.
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
#: Messages that a client may send before it has its answers.
_MAX_WAITING = 4


class Store(Protocol):
    """Where bytes that a client has sent are counted, with those of all others."""

    def hold(self, size: int) -> None:
        """Raises: ApiError: there is no room for them."""

    def release(self, size: int) -> None: ...


class Connection(Protocol):
    """What a WebSocket needs of `GuardedProtocol`."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    flow: FlowControl

    def switch(self, socket: "WebSocket", head: bytes) -> None:
        """From here on what comes is the socket's."""

    def rests(self) -> None:
        """Nobody waits for an answer: the server may stop, or another client take its place."""

    def works(self) -> None:
        """Somebody does."""

    @property
    def ends(self) -> bool:
        """The server stops."""

    def expect_message(self) -> None:
        """The rest of it must come as that of a body."""

    def message_ended(self) -> None: ...

    def abandon(self) -> None:
        """Close it in the middle of whatever it does."""


class Upgrade:
    """A request for a WebSocket, which may yet be answered otherwise."""

    def __init__(self, protocol: Connection, key: bytes) -> None:
        self._protocol = protocol
        self._accept = base64.b64encode(hashlib.sha1(key + _GUID).digest())  # noqa: S324 - RFC 6455

    def accept(
        self, headers: Mapping[str, str], store: Store, *, max_bytes: int, patience_s: float
    ) -> "WebSocket":
        """`max_bytes`: of a message. `patience_s`: so long a client may take nothing."""
        head = [
            b"HTTP/1.1 101 Switching Protocols",
            b"upgrade: websocket",
            b"connection: upgrade",
            b"sec-websocket-accept: " + self._accept,
            *(f"{name}: {value}".encode("latin-1") for name, value in headers.items()),
        ]
        socket = WebSocket(self._protocol, store, max_bytes, patience_s)
        self._protocol.switch(socket, b"\r\n".join([*head, b"", b""]))
        return socket


class WebSocket:
    """Belongs to the event loop's thread."""

    def __init__(
        self, protocol: Connection, store: Store, max_bytes: int, patience_s: float
    ) -> None:
        self._protocol = protocol
        self._store = store
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._frames = FrameProtocol(client=False, extensions=[])
        self._parts: list[str] = []
        self._size = 0
        """of the message that has not ended"""
        self._waiting: deque[tuple[str, int]] = deque()
        self._taken_bytes = 0
        self._changed = asyncio.Event()
        self.closed = False
        self.received_bytes = self.sent_bytes = 0
        self.heard_at = self.written_at = asyncio.get_running_loop().time()

    # Called by the protocol

    def take(self, data: bytes) -> None:
        """Bytes from the client."""
        if self.closed:
            return
        self.heard_at = self._protocol.loop.time()
        self.received_bytes += len(data)
        self._frames.receive_bytes(data)
        try:
            for frame in self._frames.received_frames():
                self._take_frame(frame)
        except ParseFailed as error:
            self.close(error.code, "this is no WebSocket frame")

    def lost(self) -> None:
        """The connection is."""
        self.closed = True
        self._changed.set()

    def _take_frame(self, frame: Frame) -> None:
        match None if self.closed else frame.opcode:
            case Opcode.TEXT:
                self._take_text(str(frame.payload), ended=frame.message_finished)
            case Opcode.BINARY:
                self.close(CloseReason.UNSUPPORTED_DATA, "send texts")
            case Opcode.PING if not self._protocol.flow.write_paused:
                self._write(self._frames.pong(_bytes_of(frame)))
            case Opcode.CLOSE:
                self.close()

    def _take_text(self, text: str, *, ended: bool) -> None:
        size = len(text)
        if self._size + size > self._max_bytes:
            self.close(
                CloseReason.MESSAGE_TOO_BIG, f"a message has at most {self._max_bytes} bytes"
            )
            return
        if not self._parts:
            self._protocol.expect_message()
        try:
            self._store.hold(size)
        except ApiError:
            self.close(CloseReason.TRY_AGAIN_LATER, "there is no room for more messages")
            return
        self._size += size
        if text:
            self._parts.append(text)
        if not ended:
            return
        self._protocol.message_ended()
        if len(self._waiting) >= _MAX_WAITING:
            self.close(CloseReason.POLICY_VIOLATION, "too many messages before their answers")
            return
        self._waiting.append(("".join(self._parts), self._size))
        self._parts.clear()
        self._size = 0
        self._changed.set()

    # Called by who serves it

    async def receive(self) -> str | None:
        """The next message; None when the client has gone. It is held until the next call."""
        self._store.release(self._taken_bytes)
        self._taken_bytes = 0
        if not self._waiting:
            self._protocol.rests()
            if self._protocol.ends:
                self.close(CloseReason.GOING_AWAY, "the server stops")
        while not self._waiting and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        if not self._waiting or self.closed:
            return None
        self._protocol.works()
        text, self._taken_bytes = self._waiting.popleft()
        return text

    async def send(self, text: str) -> None:
        """Raises: ClientGone"""
        if self.closed:
            raise ClientGone
        self._write(self._frames.send_data(text))
        if self._protocol.flow.write_paused:
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._protocol.flow.drain()
            except TimeoutError:
                self._protocol.abandon()
                raise ClientGone from None
        if self.closed:
            raise ClientGone

    async def gone(self) -> None:
        """Returns when the client has gone."""
        while not self.closed:
            self._changed.clear()
            await self._changed.wait()

    async def keep_alive(self, silence_s: float) -> None:
        """Ask a silent client whether it is there, and abandon one that does not answer."""
        loop = self._protocol.loop
        while not self.closed:
            await asyncio.sleep(silence_s)
            now = loop.time()
            if now - self.heard_at > silence_s + self._patience_s:
                self._protocol.abandon()
                return
            if not self._protocol.flow.write_paused:
                self._write(self._frames.ping())

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """Say so, and close."""
        if not self.closed:
            self._write(self._frames.close(code, reason))
            self._protocol.transport.close()
            self.lost()

    def end(self) -> None:
        """Nobody serves it any more."""
        self.close(CloseReason.NORMAL_CLOSURE)
        self._store.release(self._taken_bytes + self._size + sum(size for _, size in self._waiting))
        self._waiting.clear()
        self._protocol.message_ended()

    def _write(self, data: bytes | bytearray) -> None:
        if not self._protocol.transport.is_closing():
            self.sent_bytes += len(data)
            self._protocol.transport.write(bytes(data))


def _bytes_of(frame: Frame) -> bytes:
    return bytes(frame.payload) if isinstance(frame.payload, bytes | bytearray) else b""
