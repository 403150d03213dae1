"""Many inputs as jobs, each of which one event can answer."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rose.errors import InvalidParameter, MalformedMessage
from rose.protocol.codec import most_numbers
from rose_producer.request import InputLike, Request
from rose_producer.results import Result

#: Of a job: several workers share a long list, and what a dead one has done is little.
_MAX_INPUTS = 64
_MAX_BYTES = 256 * 1024
#: Where nobody has announced how many numbers a vector has.
_UNKNOWN_WIDTH = 8192


@dataclass(frozen=True, slots=True)
class Embeddings:
    """`vectors`: float32, one for each input, in their order. `prompt_tokens`: of all inputs."""

    vectors: list["array[float]"]
    prompt_tokens: int


def encode_requests(
    inputs: Sequence[InputLike], width: int | None, encode: Mapping[str, Any], options: Request
) -> list[Request]:
    """Jobs with `options` for inputs whose answers have `width` numbers each.

    Raises: InvalidParameter: there is no input.
    """
    several = isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes)
    if not several or not inputs or not all(isinstance(one, Sequence) for one in inputs):
        raise InvalidParameter(
            "inputs: must be a list with at least one text, or one list of token ids",
            param="inputs",
        )
    if queries := encode.get("queries"):
        one_each = len(queries) == len(inputs) > 1
        starts = [
            (part, queries[start : start + len(part)] if one_each else queries)
            for start, part in _parts(inputs, width)
        ]
        encodes = [(part, {**encode, "queries": tuple(own)}) for part, own in starts]
    else:
        encodes = [(part, dict(encode)) for _, part in _parts(inputs, width)]
    key = options.idempotency_key
    return [
        replace(
            options,
            prompt=part,
            encode=own,
            idempotency_key=f"{key}:{number}" if key is not None and number else key,
        )
        for number, (part, own) in enumerate(encodes)
    ]


def _parts(
    inputs: Sequence[InputLike], width: int | None
) -> Iterator[tuple[int, tuple[InputLike, ...]]]:
    most = max(1, min(_MAX_INPUTS, most_numbers() // (width or _UNKNOWN_WIDTH)))
    part: list[InputLike] = []
    start, size = 0, 0
    for one in inputs:
        own = len(one.encode(errors="replace")) if isinstance(one, str) else 5 * len(one)
        if part and (len(part) == most or size + own > _MAX_BYTES):
            yield start, tuple(part)
            start, size, part = start + len(part), 0, []
        part.append(one)
        size += own
    yield start, tuple(part)


def joined(results: Iterable[Result], count: int) -> Embeddings:
    """Of `count` inputs. Raises: MalformedMessage: an answer is none."""
    vectors: list[array[float]] = []
    tokens = 0
    for result in results:
        if result.numbers is None:
            raise MalformedMessage(f"job {result.job_id}: its answer has no numbers")
        vectors += result.numbers.rows()
        tokens += result.prompt_tokens
    if len(vectors) != count or len({len(vector) for vector in vectors}) != 1:
        raise MalformedMessage(f"{len(vectors)} answers to {count} inputs, or not of one length")
    return Embeddings(vectors, tokens)
