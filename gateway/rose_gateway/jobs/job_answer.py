"""How a job stands, as the API says it."""

from contextlib import aclosing
from itertools import accumulate
from typing import Literal

from pydantic import BaseModel, Field

from rose.errors import InvalidRequest
from rose.formats.parts import Text
from rose.protocol import CancelledEvent, FailedEvent, TokenEvent, error_of
from rose.protocol.status import JobStatus, Writer
from rose_gateway.errors import ApiError, api_error, job_error
from rose_gateway.jobs.job_group import EndpointKind, JobGroup, Record
from rose_gateway.tools.tools import CallForm
from rose_producer import AsyncJob


def failure(event: FailedEvent | CancelledEvent, group: JobGroup, choice: int = 0) -> ApiError:
    """What the last event of a failed choice means to a client."""
    error = error_of(event, group.jobs[choice].id)
    if group.record is None:
        return api_error(error)
    request = group.record.request
    answer = job_error(error, group.record.endpoint, request.get("grammar", ""))
    form = CallForm.from_record(request.get("form", ()))
    said = None
    if isinstance(event, FailedEvent) and isinstance(error, InvalidRequest):
        said = form.in_tools(event.message)
    if said is not None:
        answer.message, answer.param = said, "tools"
    return answer


_MAX_TITLE = 80


class WriterAnswer(BaseModel):
    """A worker that has written a part of the text."""

    worker: str
    from_token: int = Field(description="the number of tokens before its own")
    from_character: int | None = Field(
        default=None,
        description="as from_token, in characters of the answer's text, which thoughts and calls "
        "are not; where it was asked for",
    )


class ChoiceAnswer(BaseModel):
    job_id: str
    status: Literal["queued", "running", "finished", "failed", "cancelled"]
    tokens: int
    cancel_requested: bool
    workers: list[WriterAnswer] = Field(
        description="more than one where a worker died or was stopped, and another went on"
    )


class JobAnswer(BaseModel):
    """Times are Unix seconds; null for what has not happened."""

    id: str
    object: Literal["job"] = "job"
    endpoint: EndpointKind | None
    """the endpoint of its request; null where it did not come through here"""
    model: str | None
    title: str | None = Field(
        description="the beginning of a response's input; of other jobs it is not kept"
    )
    created_at: float | None
    started_at: float | None
    ended_at: float | None
    choices: list[ChoiceAnswer]


async def job_answer(group: JobGroup, *, characters: bool = False) -> JobAnswer:
    """Raises: JobNotFound, BrokerUnavailable"""
    statuses = [await job.status() for job in group.jobs]
    form = CallForm.from_record(group.record.request.get("form", ()) if group.record else ())
    return JobAnswer(
        id=group.id,
        endpoint=group.record.endpoint if group.record else None,
        model=group.record.model if group.record else None,
        title=_title(group.record),
        created_at=_seconds(statuses[0].enqueued_ms),
        started_at=_first_start(statuses),
        ended_at=_last_end(statuses),
        choices=[
            ChoiceAnswer.model_validate(
                {
                    "job_id": status.job_id,
                    "status": status.status,
                    "tokens": status.tokens,
                    "cancel_requested": status.cancel_requested,
                    "workers": await _writers(job, status, form if characters else None),
                }
            )
            for job, status in zip(group.jobs, statuses, strict=True)
        ],
    )


async def _writers(job: AsyncJob, status: JobStatus, form: CallForm | None) -> list[WriterAnswer]:
    """`form`: of the text whose characters are counted; None: they are not.

    Raises: JobNotFound, BrokerUnavailable
    """
    writers = status.writers
    places: list[int | None] = [None] * len(writers)
    if form is not None and writers:
        places = [*await _characters_before(job, writers, form)]
    return [
        WriterAnswer(worker=writer.worker, from_token=writer.from_token, from_character=place)
        for writer, place in zip(writers, places, strict=True)
    ]


async def _characters_before(
    job: AsyncJob, writers: tuple[Writer, ...], form: CallForm
) -> list[int]:
    """Of the text, by the log: an event ends where a worker began."""
    last = writers[-1].from_token
    parts = [0] * len(writers)
    """characters that lie between this worker's beginning and that of the one before"""
    if last == 0:
        return parts
    parser = form.parser()
    async with aclosing(job.bursts()) as bursts:
        async for burst in bursts:
            for event in burst:
                if event.is_terminal or event.index >= last:
                    return list(accumulate(parts))
                if isinstance(event, TokenEvent):
                    after = next(
                        i for i, writer in enumerate(writers) if writer.from_token > event.index
                    )
                    shown = (one for one in parser.feed(event.text) if isinstance(one, Text))
                    parts[after] += sum(len(one.text) for one in shown)
            if burst[-1].cursor >= last:
                break
    return list(accumulate(parts))


def _title(record: Record | None) -> str | None:
    """Of a response: how the last text of its input begins."""
    if record is None or record.endpoint != "response":
        return None
    for item in reversed(record.request.get("items", ())):
        for part in item.get("content") or ():
            if text := " ".join(str(part.get("text", ""))[: 4 * _MAX_TITLE].split()):
                return text[:_MAX_TITLE]
    return None


def _first_start(statuses: list[JobStatus]) -> float | None:
    known = [status.started_ms for status in statuses if status.started_ms is not None]
    return _seconds(min(known, default=None))


def _last_end(statuses: list[JobStatus]) -> float | None:
    known = [status.ended_ms for status in statuses if status.ended_ms is not None]
    return _seconds(max(known)) if len(known) == len(statuses) else None


def _seconds(time_ms: int | None) -> float | None:
    return None if time_ms is None else time_ms / 1000
