"""A vocabulary on the wire, and the key under which the workers keep it."""

import zlib

import msgpack
import pytest

from rose.errors import MalformedMessage
from rose.protocol import Partition, calls
from rose.protocol.calls import Announced, Standing
from rose.protocol.vocabulary import (
    MAX_VOCABULARY_BYTES,
    VOCABULARY_S,
    decode_vocabulary,
    encode_vocabulary,
)
from tests.support.bench import Bench

TOKENS = (b"a", b" the", b"\xff\x00", b"", "é".encode())


def announce(
    bench: Bench, worker: str, model: str, mode: str = "keep", *, has_one: bool = True
) -> Announced:
    key = bench.partition.vocabulary(f"of-{model}") if has_one else None
    facts = {"name": model, "fingerprint": f"of-{model}", "vocabulary": ""}
    call = calls.announce(bench.partition, worker, facts, mode=mode, slots=1, vocabulary=key)  # type: ignore[arg-type]
    return calls.announced(bench.call(call))


def said(bench: Bench) -> bytes | None:
    return bench.redis.hget(bench.partition.model, "vocabulary")


def test_a_vocabulary_survives_the_wire() -> None:
    assert decode_vocabulary(encode_vocabulary(TOKENS)) == TOKENS


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        zlib.compress(b""),
        zlib.compress(b"\xc1"),
        zlib.compress(msgpack.packb({"a": 1})),
        zlib.compress(msgpack.packb(["text"])),
        zlib.compress(msgpack.packb([1])),
        zlib.compress(msgpack.packb([b"a"]) + b"x"),
        zlib.compress(msgpack.packb([b"a"]))[:-6],
        b"x" * (MAX_VOCABULARY_BYTES + 1),
        zlib.compress(b"\xdd\xff\xff\xff\xff"),
    ],
    ids=lambda raw: f"{len(raw)} bytes, {raw[:8].hex()}",
)
def test_what_is_no_vocabulary_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage, match="vocabulary"):
        decode_vocabulary(raw)


def test_a_vocabulary_that_unpacks_to_more_than_the_limit_is_malformed() -> None:
    raw = zlib.compress(b"\0" * (9 * MAX_VOCABULARY_BYTES))

    with pytest.raises(MalformedMessage, match="vocabulary"):
        decode_vocabulary(raw)


def test_any_fingerprint_has_a_key_of_its_own() -> None:
    # given
    place = Partition("q")
    names = {place.vocabulary(given) for given in ("0a1b", "0a1c", "null:x", "a}b:c", "x" * 65)}
    # then
    assert len(names) == 5
    assert place.vocabulary("0a1b") == "rose:{q:0}:vocabulary:0a1b"
    assert all(name.count(":") == 4 and name.count("}") == 1 for name in names)


def test_the_first_worker_hears_that_it_is_lacking_until_it_is_there(bench: Bench) -> None:
    # given
    assert announce(bench, "w1", "m", "join").lacks_vocabulary
    assert announce(bench, "w1", "m").lacks_vocabulary
    assert said(bench) == b""
    # when
    key = bench.partition.vocabulary("of-m")
    bench.redis.set(key, encode_vocabulary(TOKENS), ex=100)
    # then: the next announcement says so, and renews it
    assert announce(bench, "w1", "m") == Announced(Standing.SERVES, "m", "of-m", False)
    assert said(bench) == b"of-m"
    assert VOCABULARY_S - 100 < bench.redis.ttl(key) <= VOCABULARY_S
    assert not announce(bench, "w2", "m", "join").lacks_vocabulary
    assert said(bench) == b"of-m"
    # and says no more so once it is gone
    bench.redis.delete(key)
    assert announce(bench, "w2", "m").lacks_vocabulary
    assert said(bench) == b""


def test_another_model_does_not_keep_the_vocabulary_of_the_last_one(bench: Bench) -> None:
    # given
    bench.redis.set(bench.partition.vocabulary("of-m"), encode_vocabulary(TOKENS))
    announce(bench, "w1", "m", "join")
    assert said(bench) == b"of-m"
    # when: one that has none
    assert not announce(bench, "w2", "n", "replace", has_one=False).lacks_vocabulary
    # then
    assert said(bench) == b""
    assert announce(bench, "w1", "m").standing is Standing.REPLACED
    assert said(bench) == b""
