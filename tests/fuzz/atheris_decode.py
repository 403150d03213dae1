"""Coverage-guided fuzzing of every parser of bytes from Redis, for as long as you let it.

    pip install atheris
    python -m tests.fuzz.atheris_decode -max_total_time=600 CORPUS_FOLDER

Options are libFuzzer's. Whatever the bytes, a parser gives a value or an error of ours; and what it
accepts, it can write and read again.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["rose", "rose_producer"]):
    from rose.protocol import (
        calls,
        decode_event,
        decode_job,
        encode_event,
        encode_job,
        readable_job_id,
    )
    from rose.protocol.calls import SubmitLimits
    from rose.protocol.status import STATUS_FIELDS, read_standing, read_status
    from rose_producer.cursor import LogCursor

from rose.errors import RoseError
from tests.fuzz.messages import Fuzzer


def job(raw: bytes) -> None:
    readable_job_id(raw)
    spec = decode_job(raw)
    written = encode_job(spec)
    if encode_job(decode_job(written)) != written:
        raise AssertionError(f"a job changes when it is written and read again: {raw!r}")


def event(raw: bytes) -> None:
    decoded = decode_event(raw)
    # Not compared: an event may have carried fields of a later version.
    decode_event(encode_event(decoded))


def state(raw: bytes) -> None:
    fields = [part or None for part in raw.split(b"\0")]
    read_standing("0-a", fields[:2])
    read_status("0-a", fields[: len(STATUS_FIELDS)])


def replies(raw: bytes) -> None:
    calls.submitted_id(raw.split(b"\0"), SubmitLimits())


def taken(raw: bytes) -> None:
    calls.taken(raw)


def subscriber(raw: bytes) -> None:
    cursor = LogCursor()
    for message in raw.split(b"\0\0"):
        before = cursor.position, cursor.ended
        _, news = cursor.judge_live(message)
        if news is not None and (news.index, before[1]) != (before[0], False):
            raise AssertionError(f"delivered out of order: {raw!r}")


#: The first byte says which.
TARGETS: tuple[Callable[[bytes], None], ...] = (job, event, state, replies, taken, subscriber)


def one_input(data: bytes) -> None:
    if data:
        with contextlib.suppress(RoseError):
            TARGETS[data[0] % len(TARGETS)](data[1:])


def main() -> None:
    atheris.Setup(sys.argv, one_input, custom_mutator=_mutate)
    atheris.Fuzz()


_fuzzer = Fuzzer(0, large_every=10**9)


def _mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """libFuzzer's own mutations, and now and then a fresh message: msgpack is hard to guess."""
    if seed % 50 == 0:
        fresh = (_fuzzer.job, _fuzzer.event)[seed // 50 % 2]()
        return bytes([seed // 100 % len(TARGETS)]) + fresh[: max_size - 1]
    mutated: bytes = atheris.Mutate(data, max_size)
    return mutated


if __name__ == "__main__":
    main()
