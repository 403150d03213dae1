"""Bodies that come compressed, unpacked in pieces: whoever counts them may stop at any.

A few bytes may stand for gigabytes. So no more than a piece is made at a time, and a zstd frame
gets no larger window than its format asks every reader to have.
"""

import io
import zlib
from collections.abc import Callable, Iterator, Mapping

from rose_gateway.requests.bad_request import BadRequest

_PIECE_BYTES = 64 * 1024
_MAX_WINDOW_BYTES = 8 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS


def unpacked(body: bytes, encoding: str) -> Iterator[bytes]:
    """`encoding`: one of `ENCODINGS`. Raises: BadRequest: it is not what it is said to be."""
    try:
        yield from ENCODINGS[encoding](body)
    except _Wrong:
        raise BadRequest(
            f"the body is not {encoding}, as its content-encoding says", code="invalid_body"
        ) from None


class _Wrong(Exception):
    pass


def _gzip(body: bytes) -> Iterator[bytes]:
    """Members may follow each other."""
    while body:
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            try:
                piece = member.decompress(body, _PIECE_BYTES)
            except zlib.error:
                raise _Wrong from None
            body = member.unconsumed_tail
            if not piece and not body and not member.eof:
                raise _Wrong  # it has no end
            if piece:
                yield piece
        body = member.unused_data


def _zstd(body: bytes) -> Iterator[bytes]:
    import zstandard  # few clients send it

    context = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    with context.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        try:
            while piece := reader.read(_PIECE_BYTES):
                yield piece
        except zstandard.ZstdError:
            raise _Wrong from None


ENCODINGS: Mapping[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
