"""The bytes of each token of a model, stored in Redis for programs that show single tokens."""

import zlib
from collections.abc import Sequence

import msgpack

from rose.errors import MalformedMessage

#: Of what stands in Redis. A vocabulary of 250,000 tokens takes about one.
MAX_VOCABULARY_BYTES = 16 * 1024 * 1024
_MAX_UNPACKED_BYTES = 8 * MAX_VOCABULARY_BYTES
_MAX_TOKENS = 4 * 1024 * 1024

#: Each announcement of a worker renews it: as in announce.lua.
VOCABULARY_S = 30 * 86_400


def encode_vocabulary(tokens: Sequence[bytes]) -> bytes:
    """An array of the tokens' bytes by id, as msgpack, compressed by zlib."""
    return zlib.compress(msgpack.packb(list(tokens)))


def decode_vocabulary(raw: bytes) -> tuple[bytes, ...]:
    """Raises: MalformedMessage: not a vocabulary, or too large."""
    if len(raw) > MAX_VOCABULARY_BYTES:
        raise MalformedMessage(
            f"a vocabulary of {len(raw)} bytes: the limit is {MAX_VOCABULARY_BYTES}"
        )
    unpacker = zlib.decompressobj()
    try:
        packed = unpacker.decompress(raw, _MAX_UNPACKED_BYTES)
        if unpacker.unconsumed_tail:
            raise MalformedMessage(f"a vocabulary of more than {_MAX_UNPACKED_BYTES} bytes")
        tokens = msgpack.unpackb(
            packed, max_array_len=_MAX_TOKENS, max_map_len=0, max_ext_len=0, max_str_len=0
        )
    except (zlib.error, msgpack.UnpackException, ValueError) as error:
        raise MalformedMessage(f"not a vocabulary: {error or type(error).__name__}") from None
    if not isinstance(tokens, list) or not all(isinstance(token, bytes) for token in tokens):
        raise MalformedMessage("not a vocabulary: expected an array of bytes")
    return tuple(tokens)
