"""The record of a job: data of its submitter, stored as long as the job."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rose.errors import InvalidParameter, JobTooLarge
from rose.protocol.jobs import JOB_ID_PATTERN
from rose.protocol.status import int_or_none, job_not_found, written_by_us

MAX_RECORD_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A snapshot. Times are Unix milliseconds; None for what has not happened."""

    job_id: str
    owner: str
    """whose job it is, as `submit` was told; "" for nobody's"""
    record: bytes
    """as `submit` was given it: neither Redis nor a worker reads it"""
    status: str
    """queued, running, finished, failed or cancelled"""
    tokens: int
    cancel_requested: bool
    enqueued_ms: int | None
    started_ms: int | None
    """of the last take"""
    ended_ms: int | None
    tenant: str = ""
    """on whose account it runs; "" for nobody's"""


RECORD_FIELDS = (
    "status",
    "deleted",
    "owner",
    "record",
    "tokens",
    "cancel",
    "enqueued_ms",
    "started_ms",
    "ended_ms",
    "tenant",
)


def read_record(job_id: str, fields: Sequence[Any]) -> JobRecord:
    """From the reply to HMGET of RECORD_FIELDS.

    Raises:
        JobNotFound: it was never submitted, has expired, or was deleted.
        MalformedMessage: somebody else has written into the job's state.
    """
    status, deleted, owner, record, tokens, cancel, *times, tenant = fields
    if status is None or deleted is not None:
        raise job_not_found(job_id)
    with written_by_us(f"the state of job {job_id}"):
        enqueued, started, ended = (int_or_none(time) for time in times)
        return JobRecord(
            job_id,
            (owner or b"").decode(),
            record or b"",
            status.decode(),
            int(tokens or 0),
            cancel == b"1",
            enqueued,
            started,
            ended,
            (tenant or b"").decode(),
        )


def check_record(record: bytes, owner: str) -> None:
    """Raises: InvalidParameter, JobTooLarge"""
    if not isinstance(record, bytes):
        raise InvalidParameter(f"record: must be bytes (got {type(record).__name__})")
    if len(record) > MAX_RECORD_BYTES:
        raise JobTooLarge(
            f"the record is {len(record)} bytes, the limit is {MAX_RECORD_BYTES}: "
            "store the data elsewhere and keep a reference"
        )
    if owner and not re.fullmatch(JOB_ID_PATTERN, owner):
        raise InvalidParameter(
            f"owner: {owner!r} must be 1 to 80 characters of A-Z a-z 0-9 _ . -, the first a letter "
            "or digit; leave it out for nobody"
        )
