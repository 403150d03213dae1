"""A client of WebSockets, which can also misbehave."""

import json
import socket
from collections.abc import Mapping
from typing import Any, Self

from wsproto.frame_protocol import Frame, FrameProtocol, Opcode

_HEAD = """\
GET {path} HTTP/1.1\r
host: 127.0.0.1:{port}\r
upgrade: WebSocket\r
connection: Upgrade\r
sec-websocket-version: 13\r
sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r
"""


class Refused(Exception):
    """The request was answered, and is no WebSocket."""


class WebSocketClient:
    """Open once it is made. Raises: Refused"""

    def __init__(
        self, port: int, path: str = "/v1/responses", headers: Mapping[str, str] | None = None
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._frames = FrameProtocol(client=True, extensions=[])
        self.close_code: int | None = None
        self._got: list[Frame] = []
        lines = [f"{name}: {value}\r\n" for name, value in (headers or {}).items()]
        self.send_bytes("".join([_HEAD.format(path=path, port=port), *lines, "\r\n"]).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            data = self._socket.recv(65536)
            if not data:
                break
            head += data
        self.head, _, rest = head.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            self._socket.close()
            raise Refused(head.decode())
        self._frames.receive_bytes(rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def frame(self, text: str, *, last: bool = True) -> bytes:
        return bytes(self._frames.send_data(text, fin=last))

    def send(self, message: Mapping[str, Any]) -> None:
        self.send_bytes(self.frame(json.dumps(message)))

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the server has closed."""
        text = ""
        while True:
            for frame in self._frames.received_frames():
                if frame.opcode is Opcode.PING:
                    self.send_bytes(bytes(self._frames.pong()))
                elif frame.opcode is Opcode.CLOSE:
                    self.close_code = int(frame.payload[0])
                    return None
                elif frame.opcode in (Opcode.TEXT, Opcode.CONTINUATION):
                    text += str(frame.payload)
                    if frame.message_finished:
                        message: dict[str, Any] = json.loads(text)
                        return message
            try:
                data = self._socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames.receive_bytes(data)

    def read_to_the_end(self) -> None:
        """Until the server has closed, without an answer to its pings."""
        try:
            while self._socket.recv(65536):
                pass
        except ConnectionError:
            return

    def events(self) -> list[dict[str, Any]]:
        """Of one response, to its end or its error."""
        events: list[dict[str, Any]] = []
        while (event := self.receive()) is not None:
            events.append(event)
            if event["type"] in (
                *("response.completed", "response.incomplete", "response.failed"),
                "error",
            ):
                break
        return events
