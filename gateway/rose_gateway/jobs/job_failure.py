"""What the failure of a job means to whoever requested it."""

from __future__ import annotations

from rose.protocol import CancelledEvent, FailedEvent, error_of
from rose_gateway.errors import ApiError, api_error, job_error
from rose_gateway.jobs.job_group import JobGroup


def failure(event: FailedEvent | CancelledEvent, group: JobGroup, choice: int = 0) -> ApiError:
    """What the last event of a failed choice means to a client."""
    error = error_of(event, group.jobs[choice].id)
    return api_error(error) if group.record is None else job_error(error, group.record.face)
