"""Clients that begin with HTTP/2, unasked. They are told that HTTP/1.1 is spoken here, in the way
that HTTP/2 has for it (RFC 9113, 7): those that can both, such as curl, ask again."""

from collections.abc import Iterator

#: What such a connection begins with, made so that a parser of HTTP/1.1 refuses it.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_HEADERS, _RST_STREAM, _SETTINGS = 1, 3, 4
_HTTP_1_1_REQUIRED = (0x0D).to_bytes(4, "big")
_FRAME_HEAD = 9


#: What a server says first.
GREETING = bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])


def begins_http2(data: bytes) -> bool:
    return data.startswith(_PREFACE)


def refusal(data: bytes) -> bytes:
    """Of the requests that have begun. Empty where there is none yet. `data`: all that has come."""
    return b"".join(
        _frame(_RST_STREAM, stream, _HTTP_1_1_REQUIRED)
        for kind, stream in _frames(data[len(_PREFACE) :])
        if kind == _HEADERS
    )


def _frames(data: bytes) -> Iterator[tuple[int, int]]:
    """The type and the stream of each frame whose head is there."""
    while len(data) >= _FRAME_HEAD:
        length = int.from_bytes(data[:3], "big")
        yield data[3], int.from_bytes(data[5:_FRAME_HEAD], "big")
        data = data[_FRAME_HEAD + length :]


def _frame(kind: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload
