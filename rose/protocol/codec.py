"""Messages to msgpack and back. Sizes are checked before a byte is parsed."""

import math
import re
from collections.abc import Sequence
from typing import Any

import msgpack
import msgspec

from rose.engine_records import Numbers, PromptLogprobs, TokenLogprob
from rose.errors import InvalidParameter, JobTooLarge, MalformedMessage
from rose.protocol.events import Event, FinishedEvent, TokenEvent
from rose.protocol.jobs import JOB_ID_PATTERN, JobSpec, job_from

MAX_JOB_BYTES = 1024 * 1024
MAX_METADATA_BYTES = 4 * 1024
MAX_EVENT_BYTES = 1024 * 1024
MAX_PROMPT_IDS = 200_000
"""of a prompt whose tokens an event names, each of which takes at most five bytes"""
#: More fields than 4 KiB of metadata can hold, because each wrong one costs a report.
_MAX_MAP_FIELDS = 2048

#: At most, of a token's id and log-probability, and of one of the likeliest beside it.
_LOGPROB_BYTES, _TOP_LOGPROB_BYTES = 14, 11
#: More than all fields of an end take, but the longest.
_REST_OF_EVENT = 4096

_EVENT: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_SAMPLING = {"sampling"}
#: Encodes as msgpack does, in a third of the time, but all numbers in double precision.
_encode = msgspec.msgpack.Encoder().encode


def encode_job(job: JobSpec) -> bytes:
    """Raises: JobTooLarge: over 1 MiB in all, or over 4 KiB of metadata."""
    metadata = len(_pack(job.metadata)) if job.metadata else 0
    if metadata > MAX_METADATA_BYTES:
        raise JobTooLarge(
            f"metadata is {metadata} bytes, the limit is {MAX_METADATA_BYTES}: "
            "store the data elsewhere and send a reference"
        )
    # By itself, since pydantic would compare all its fields with those of a default first.
    sampling = job.sampling.model_dump(exclude_defaults=True)
    fields = job.model_dump(exclude_defaults=True, exclude=_SAMPLING) | {"v": job.v}
    raw = _pack(fields | {"sampling": sampling} if sampling else fields)
    if len(raw) > MAX_JOB_BYTES:
        raise JobTooLarge(
            f"the job is {len(raw)} bytes, the limit is {MAX_JOB_BYTES}: shorten the prompt"
        )
    return raw


def decode_job(raw: bytes) -> JobSpec:
    """Raises:
    JobTooLarge: over a size limit.
    MalformedMessage: not a msgpack map, or one with binary values.
    InvalidParameter: a map, but not a job.
    """
    if len(raw) > MAX_JOB_BYTES:
        raise JobTooLarge(f"the job is {len(raw)} bytes, the limit is {MAX_JOB_BYTES}")
    job = job_from(_unpack_map(raw))
    if job.metadata and len(_pack(job.metadata)) > MAX_METADATA_BYTES:
        raise JobTooLarge(f"metadata is over the limit of {MAX_METADATA_BYTES} bytes")
    return job


def readable_job_id(raw: bytes) -> str | None:
    """The id of a job that `decode_job` refused, if it can still be read."""
    if len(raw) > MAX_JOB_BYTES:
        return None
    try:
        fields = _unpack(raw, binary=True)
    except MalformedMessage:
        return None
    if not isinstance(fields, dict):
        return None
    job_id = fields.get("id", fields.get(b"id"))
    if isinstance(job_id, bytes):
        job_id = job_id.decode("ascii", "replace")
    if isinstance(job_id, str) and re.fullmatch(JOB_ID_PATTERN, job_id):
        return job_id
    return None


def encode_event(event: Event) -> bytes:
    if isinstance(event, TokenEvent):
        return encode_tokens(
            event.index,
            event.token_ids,
            event.text,
            event.logprobs,
            event.prompt_logprobs,
            event.text_lengths,
        )
    return _pack(event.as_dict())


def encode_tokens(
    index: int,
    token_ids: Sequence[int],
    text: str,
    logprobs: Sequence[TokenLogprob] | None = None,
    prompt_logprobs: PromptLogprobs | None = None,
    text_lengths: Sequence[int] | None = None,
) -> bytes:
    """As `encode_event` of a TokenEvent, for a worker that has tens of thousands a second.

    What is None is no field. Log-probabilities are of single precision.
    """
    event: dict[str, Any] = {"index": index, "type": "tokens", "token_ids": token_ids, "text": text}
    if text_lengths is not None:
        event["text_lengths"] = text_lengths
    if logprobs is None:
        return _encode(event)
    event["logprobs"] = logprobs
    if prompt_logprobs is not None:
        event["prompt_logprobs"] = prompt_logprobs
    packed: bytes = msgpack.packb(event, use_single_float=True)
    return packed


def most_prompt_logprobs(top: int) -> int:
    """How many tokens a prompt may have if an event is to hold their log-probabilities, and those
    of `top` others for each. The tokens that are generated need the other half of it."""
    return MAX_EVENT_BYTES // 2 // (_LOGPROB_BYTES + top * _TOP_LOGPROB_BYTES)


def most_numbers() -> int:
    """How many numbers an event holds, in all rows."""
    return (MAX_EVENT_BYTES - _REST_OF_EVENT) // 4


def decode_event(raw: bytes) -> Event:
    """Raises: MalformedMessage: not an event of this protocol."""
    if len(raw) > MAX_EVENT_BYTES:
        raise MalformedMessage(f"an event of {len(raw)} bytes: the limit is {MAX_EVENT_BYTES}")
    try:
        event = _EVENT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"not an event: {error}") from None
    if type(event) is TokenEvent:
        if event.text_lengths is not None or len(event.token_ids) > 1:
            _check_lengths(event, event.text_lengths or ())
        if event.logprobs is not None:
            _check_finite(event.logprobs)
        if event.prompt_logprobs is not None:
            _check_prompt(event.prompt_logprobs)
    elif type(event) is FinishedEvent and event.numbers is not None:
        _check_numbers(event.numbers)
    return event


def _check_lengths(event: TokenEvent, lengths: Sequence[int]) -> None:
    """Raises: MalformedMessage"""
    if len(lengths) != len(event.token_ids) or sum(lengths) != len(event.text):
        raise MalformedMessage(
            f"not an event: text_lengths: must be one for each of {len(event.token_ids)} tokens, "
            f"and {len(event.text)} characters in all"
        )


def _check_numbers(numbers: Numbers) -> None:
    """Raises: MalformedMessage"""
    if len(numbers.data) % (4 * numbers.width):
        raise MalformedMessage(
            f"not an event: numbers: {len(numbers.data)} bytes are no rows of {numbers.width}"
        )


def _check_prompt(prompt: PromptLogprobs) -> None:
    """Raises: MalformedMessage"""
    _check_finite(prompt.logprobs)
    if len(prompt.token_ids) != len(prompt.logprobs) + 1:
        raise MalformedMessage("not an event: prompt_logprobs: one for each token but the first")


def _check_finite(logprobs: Sequence[TokenLogprob]) -> None:
    """Raises: MalformedMessage: JSON has no word for it."""
    for logprob, top in logprobs:
        if not (math.isfinite(logprob) and all(math.isfinite(number) for _, number in top)):
            raise MalformedMessage("not an event: logprobs: must be finite numbers")


def _pack(value: Any) -> bytes:
    try:
        return _encode(value)
    except (OverflowError, ValueError, UnicodeEncodeError) as error:
        raise InvalidParameter(f"cannot be encoded as msgpack: {error}") from None


def _unpack_map(raw: bytes) -> dict[str, Any]:
    """One msgpack map with string keys and without binary."""
    try:
        value = _unpack(raw, binary=False)
    except MalformedMessage:
        _unpack(raw, binary=True)
        raise MalformedMessage(
            "it has binary, and msgpack has strings for text: pack keys and texts as strings"
        ) from None
    # With these limits b"" is the only key that is no text.
    if not isinstance(value, dict) or b"" in value:
        raise MalformedMessage(
            f"expected a msgpack map with string keys, got {type(value).__name__}"
        )
    return value


def _unpack(raw: bytes, *, binary: bool) -> Any:
    """Whatever msgpack says it is; no extension types, and nothing after it."""
    try:
        return msgpack.unpackb(
            raw,
            strict_map_key=True,
            max_ext_len=0,
            max_bin_len=len(raw) if binary else 0,
            max_map_len=_MAX_MAP_FIELDS,
        )
    except (msgpack.UnpackException, ValueError) as error:
        raise MalformedMessage(f"not msgpack: {str(error) or type(error).__name__}") from None
