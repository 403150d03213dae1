"""Input for parsers: noise, damaged messages, well-formed nonsense, and bombs.

Everything follows from the seed, so that a run can be had again.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from rose.engine_records import PromptLogprobs, TokenLogprob
from rose.protocol import (
    CancelledEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    JobSpec,
    TokenEvent,
    encode_event,
    encode_job,
)

#: A placeholder for the message's id. All ids have this length.
_ID = b"0-0000000000"

_JOBS: tuple[dict[str, Any], ...] = (
    {"prompt": "Once upon a time"},
    {"prompt": "späte Grüße 🦊", "sampling": {"max_new_tokens": 1, "stop": ["\n", "é"]}},
    {"prompt": (1, 2, 3), "sampling": {"max_new_tokens": 2, "seed": 2**63 - 1}},
    {
        "prompt": ({"role": "system", "content": ""}, {"role": "user", "content": "hi"}),
        "sampling": {"max_new_tokens": 2, "temperature": 0.7, "top_k": 5, "top_p": 0.9},
    },
    {
        "prompt": "x",
        "sampling": {"max_new_tokens": 1, "min_p": 0.1, "stop_token_ids": (7, 8)},
        "deadline_ms": 2**41,
        "metadata": {"user": "x", "n": 1, "f": 0.5, "none": None, "flag": True},
    },
    {
        "prompt": "x",
        "sampling": {
            "max_new_tokens": 2,
            "min_new_tokens": 1,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "logit_bias": ((7, -1.5),),
        },
    },
    {"prompt": "x", "sampling": {"max_new_tokens": 1, "logprobs": True, "top_logprobs": 2}},
    {"prompt": "x", "sampling": {"max_new_tokens": 1, "json_schema": '{"type": "object"}'}},
    {"prompt": "x", "sampling": {"max_new_tokens": 1, "regex": "[a-z]+"}},
)

_EVENTS: tuple[Event, ...] = (
    TokenEvent(index=0, token_ids=(5, 6), text="é"),
    TokenEvent(index=3, token_ids=(7,), text=""),
    TokenEvent(
        index=4, token_ids=(7,), text="x", logprobs=(TokenLogprob(-0.5, ((7, -0.5), (1, -2.0))),)
    ),
    TokenEvent(
        index=0,
        token_ids=(7,),
        text="x",
        logprobs=(TokenLogprob(-0.5, ()),),
        prompt_logprobs=PromptLogprobs((5, 6), (TokenLogprob(-1.5, ((6, -1.5),)),)),
    ),
    FinishedEvent(index=2, reason="eos", prompt_tokens=7),
    CancelledEvent(index=1),
    FailedEvent(index=0, code="crash_loop", message="three workers died"),
)

_FIELDS = ("v", "id", "prompt", "sampling", "deadline_ms", "metadata", "role", "priority")
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "0-a", "\x00", "\u202e\x1b[2J", "é" * 40, b"", b"bytes", "../../etc", "0-a\n"),
    *(msgpack.ExtType(0, b""), msgpack.ExtType(127, b"x" * 9), msgpack.Timestamp(2**34 - 1)),
)


def small_bombs() -> tuple[bytes, ...]:
    """A few bytes that promise much more, or nest as deeply as they can."""
    head = b"\x82\xa2id\xac" + _ID + b"\xa6prompt"
    huge = [kind + b"\xff" * 4 for kind in (b"\xc6", b"\xc9", b"\xdb", b"\xdd", b"\xdf")]
    deep = [b"\x91" * 400 + b"\xc0", b"\x81\xa1a" * 400 + b"\xc0", b"\xdc\x00\x01" * 600 + b"\xc0"]
    surrogate, repeated = b"\xa3\xed\xa0\x80", b"\x84" + b"\xa2id\xa1a" * 4
    return (*huge, *deep, repeated, *(head + bomb for bomb in (*huge, *deep, surrogate)))


def large_bombs() -> tuple[Callable[[], bytes], ...]:
    """Up to the limit of a megabyte and over it: made only when they are sent."""
    million = 1_000_000
    rest = {"id": _ID.decode(), "prompt": "x"}
    bodies: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: {"prompt": "x" * million},
        lambda: {"prompt": "x" * (1 << 20)},
        lambda: {"prompt": [-1] * million},
        lambda: {"prompt": [{}] * million},
        lambda: {"prompt": [[]] * million},
        lambda: {"metadata": {str(i): [] for i in range(100_000)}},
        lambda: {"sampling": {"stop": [1] * million}},
        lambda: {"y" * million: 1},
        lambda: dict.fromkeys(map(str, range(2000)), 1),
    )
    return (
        lambda: b"\xc1" * (1 << 20),
        lambda: b"\x91" * million,
        *(lambda body=body: msgpack.packb(rest | body()) for body in bodies),
    )


class Fuzzer:
    """Makes messages; the same ones in the same order for the same seed."""

    def __init__(self, seed: int, *, large_every: int = 20_000) -> None:
        """`large_every`: one message of about a megabyte among so many."""
        self._random = random.Random(seed)
        self._large_every = large_every
        self._made = 0
        self._jobs = [encode_job(JobSpec(id=_ID.decode(), **fields)) for fields in _JOBS]
        self._events = [encode_event(event) for event in _EVENTS]
        self._small = small_bombs()
        self._large = large_bombs()
        # Weighted by what each kind finds: noise is always refused at once.
        self._kinds: tuple[Callable[[Sequence[bytes]], bytes], ...] = (
            *(self._flipped,) * 4,
            *(self._stuttered,) * 3,
            *(self._spliced,) * 2,
            self._cut,
            *(lambda _: msgpack.packb(self._job_shaped()),) * 5,
            lambda _: msgpack.packb(self._nested(4)),
            lambda _: self._random.choice(self._small),
            lambda _: self.noise(),
        )

    def job(self) -> bytes:
        """What might have been a job once; one in ten still is."""
        self._made += 1
        if self._random.randrange(self._large_every) == 0:
            raw = self._random.choice(self._large)()
        elif self._random.randrange(10) == 0:
            raw = self._random.choice(self._jobs)
        else:
            raw = self._random.choice(self._kinds)(self._jobs)
        return raw.replace(_ID, b"0-%010d" % self._made)

    def event(self) -> bytes:
        return self._random.choice(self._kinds)(self._events)

    def noise(self, most: int = 120) -> bytes:
        return self._random.randbytes(self._random.randrange(most))

    def entry(self, raw: bytes) -> list[bytes]:
        """Fields of a stream entry that carries `raw`; some carry it badly, or not at all."""
        match self._random.randrange(50):
            case 0:
                return [b"jobs", raw]
            case 1:
                return [self.noise() or b"x", raw]
            case 2:
                return [b"before", b"x", b"job", raw, b"after", self.noise()]
            case 3:
                return [b"job", b"", b"job", raw]
        return [b"job", raw]

    def _flipped(self, seeds: Sequence[bytes]) -> bytes:
        damaged = bytearray(self._random.choice(seeds))
        for _ in range(self._random.choice((1, 1, 1, 2, 8))):
            damaged[self._random.randrange(len(damaged))] ^= 1 << self._random.randrange(8)
        return bytes(damaged)

    def _cut(self, seeds: Sequence[bytes]) -> bytes:
        whole = self._random.choice(seeds)
        return whole[: self._random.randrange(len(whole))]

    def _spliced(self, seeds: Sequence[bytes]) -> bytes:
        head, tail = self._random.choice(seeds), self._random.choice(seeds)
        return head[: self._random.randrange(len(head))] + tail[self._random.randrange(len(tail)) :]

    def _stuttered(self, seeds: Sequence[bytes]) -> bytes:
        """A piece is missing, comes twice, or is noise."""
        whole = self._random.choice(seeds)
        start, end = sorted(self._random.randrange(len(whole) + 1) for _ in range(2))
        middle = self._random.choice((b"", whole[start:end] * 2, self.noise(9)))
        return whole[:start] + middle + whole[end:]

    def _nested(self, depth: int) -> Any:
        kind = self._random.randrange(6) if depth else 5
        if kind == 0:
            return [self._nested(depth - 1) for _ in range(self._random.randrange(4))]
        if kind == 1:
            keys = (self._random.choice((*_FIELDS, "a", 7, b"k")) for _ in range(3))
            return {key: self._nested(depth - 1) for key in keys}
        return self._random.choice(_ODD)

    def _job_shaped(self) -> dict[str, Any]:
        """A job whose fields are of every kind but the right one."""
        job: dict[str, Any] = {"id": _ID.decode(), "prompt": "x"}
        for field in self._random.sample(_FIELDS, self._random.randrange(1, 4)):
            job[field] = self._nested(2)
        return job
