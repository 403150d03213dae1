"""The caller's jobs."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from rose.errors import JobNotFound, MalformedMessage
from rose_gateway.access.authentication import Caller, current_request
from rose_gateway.access.limits import QueuedJob
from rose_gateway.jobs.job_answer import JobAnswer, job_answer
from rose_gateway.listing import Page
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.routes.dependencies import CallerDependency, Limit, ServicesDependency
from rose_gateway.services import Services

router = APIRouter(tags=["jobs"])


class JobList(Page[JobAnswer]):
    """The newest first."""


@router.get("/v1/jobs", summary="List the caller's jobs, newest first")
async def list_jobs(
    services: ServicesDependency,
    caller: CallerDependency,
    after: Annotated[
        str | None, Query(max_length=128, description="the id of a job: those before it")
    ] = None,
    limit: Limit = 20,
) -> JobList:
    """Of the last 1,000 that are stored, without those of batches. A job is not found any more
    some time after its end, or when it was deleted."""
    # Another gateway may serve other queues.
    listed = [
        job for job in await services.history.jobs(caller.key_id) if job.queue in services.clients
    ]
    rest = listed[_position(listed, after) :]
    found: list[JobAnswer] = []
    while rest and len(found) <= limit:
        some, rest = rest[: limit + 1], rest[limit + 1 :]
        answers = await asyncio.gather(*(_found(services, caller, job) for job in some))
        found += [answer for answer in answers if answer is not None]
        gone = [job for job, answer in zip(some, answers, strict=True) if answer is None]
        await services.history.forget(caller.key_id, gone)
    current_request().job_id = ""  # no one of them
    return JobList.of(found[:limit], has_more=len(found) > limit)


def _position(listed: list[QueuedJob], after: str | None) -> int:
    """Raises: BadRequest"""
    if after is None:
        return 0
    for number, job in enumerate(listed):
        if job.job_id == after:
            return number + 1
    raise BadRequest("after: no job with this id is in the list", "after")


async def _found(services: Services, caller: Caller, job: QueuedJob) -> JobAnswer | None:
    """Raises: BrokerUnavailable"""
    try:
        return await job_answer(await services.jobs.find(caller, job.job_id))
    except (JobNotFound, MalformedMessage):
        return None
