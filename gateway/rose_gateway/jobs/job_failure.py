"""What the failure of a job means to whoever requested it."""

from rose.errors import InvalidRequest
from rose.protocol import CancelledEvent, FailedEvent, error_of
from rose_gateway.errors import ApiError, api_error, job_error
from rose_gateway.jobs.job_group import JobGroup
from rose_gateway.tools.tools import CallForm


def failure(event: FailedEvent | CancelledEvent, group: JobGroup, choice: int = 0) -> ApiError:
    """What the last event of a failed choice means to a client."""
    error = error_of(event, group.jobs[choice].id)
    if group.record is None:
        return api_error(error)
    request = group.record.request
    answer = job_error(error, group.record.face, request.get("grammar", ""))
    form = CallForm.from_record(request.get("form", ()))
    said = None
    if isinstance(event, FailedEvent) and isinstance(error, InvalidRequest):
        said = form.in_tools(event.message)
    if said is not None:
        answer.message, answer.param = said, "tools"
    return answer
