"""Messages to msgpack and back. Sizes are checked before a byte is parsed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgpack
from pydantic import TypeAdapter, ValidationError

from rose.engine_records import TokenLogprob
from rose.errors import InvalidParameter, JobTooLarge, MalformedMessage
from rose.protocol.events import Event, TokenEvent
from rose.protocol.jobs import JOB_ID_PATTERN, JobSpec, job_from
from rose.validation import describe

MAX_JOB_BYTES = 1024 * 1024
MAX_METADATA_BYTES = 4 * 1024
MAX_EVENT_BYTES = 1024 * 1024
#: More fields than 4 KiB of metadata can hold: each wrong one costs a report.
_MAX_MAP_FIELDS = 2048

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def encode_job(job: JobSpec) -> bytes:
    """Raises: JobTooLarge: over 1 MiB in all, or over 4 KiB of metadata."""
    metadata = len(_pack(job.metadata))
    if metadata > MAX_METADATA_BYTES:
        raise JobTooLarge(
            f"metadata is {metadata} bytes, the limit is {MAX_METADATA_BYTES}: "
            "store the data elsewhere and send a reference"
        )
    raw = _pack(job.model_dump(exclude_defaults=True) | {"v": job.v})
    if len(raw) > MAX_JOB_BYTES:
        raise JobTooLarge(
            f"the job is {len(raw)} bytes, the limit is {MAX_JOB_BYTES}: shorten the prompt"
        )
    return raw


def decode_job(raw: bytes) -> JobSpec:
    """Raises:
    JobTooLarge: over a size limit.
    MalformedMessage: not a msgpack map.
    InvalidParameter: a map, but not a job.
    """
    if len(raw) > MAX_JOB_BYTES:
        raise JobTooLarge(f"the job is {len(raw)} bytes, the limit is {MAX_JOB_BYTES}")
    job = job_from(_unpack_map(raw))
    if len(_pack(job.metadata)) > MAX_METADATA_BYTES:
        raise JobTooLarge(f"metadata is over the limit of {MAX_METADATA_BYTES} bytes")
    return job


def readable_job_id(raw: bytes) -> str | None:
    """The id of a job that `decode_job` refused, if it can still be read."""
    if len(raw) > MAX_JOB_BYTES:
        return None
    try:
        job_id = _unpack_map(raw).get("id")
    except MalformedMessage:
        return None
    if isinstance(job_id, str) and re.fullmatch(JOB_ID_PATTERN, job_id):
        return job_id
    return None


def encode_event(event: Event) -> bytes:
    if isinstance(event, TokenEvent):
        return encode_tokens(event.index, event.token_ids, event.text, event.logprobs)
    # An event is flat: its fields are what model_dump() would copy, at twice the cost.
    return _pack(vars(event))


def encode_tokens(
    index: int,
    token_ids: Sequence[int],
    text: str,
    logprobs: Sequence[TokenLogprob] | None = None,
) -> bytes:
    """As `encode_event` of a TokenEvent, for a worker that has tens of thousands a second.

    Without `logprobs` there is no such field; with it, numbers are of single precision.
    """
    event = {"index": index, "type": "tokens", "token_ids": token_ids, "text": text}
    packed: bytes
    if logprobs is None:
        packed = msgpack.packb(event)
    else:
        packed = msgpack.packb(event | {"logprobs": logprobs}, use_single_float=True)
    return packed


def decode_event(raw: bytes) -> Event:
    """Raises: MalformedMessage: not an event of this protocol."""
    if len(raw) > MAX_EVENT_BYTES:
        raise MalformedMessage(f"an event of {len(raw)} bytes: the limit is {MAX_EVENT_BYTES}")
    try:
        return _EVENT.validate_python(_unpack_map(raw))
    except ValidationError as error:
        raise MalformedMessage(f"not an event: {describe(error, whole='event')}") from None


def _pack(value: Any) -> bytes:
    try:
        packed: bytes = msgpack.packb(value)
    except (OverflowError, ValueError, UnicodeEncodeError) as error:
        raise InvalidParameter(f"cannot be encoded as msgpack: {error}") from None
    return packed


def _unpack_map(raw: bytes) -> dict[str, Any]:
    """One msgpack map with string keys; no extension types, no binary, nothing after it."""
    try:
        value = msgpack.unpackb(
            raw, strict_map_key=True, max_ext_len=0, max_bin_len=0, max_map_len=_MAX_MAP_FIELDS
        )
    except (msgpack.UnpackException, ValueError) as error:
        raise MalformedMessage(f"not msgpack: {str(error) or type(error).__name__}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise MalformedMessage(
            f"expected a msgpack map with string keys, got {type(value).__name__}"
        )
    return value
