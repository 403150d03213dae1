"""How many tokens a prompt has, and which: a job that generates nothing says it.

The chat template and the tokenizer are the worker's, so the count is exact.
"""

from contextlib import aclosing
from dataclasses import replace
from typing import Literal

from rose.errors import JobNotFound
from rose.protocol import FinishedEvent
from rose_gateway.access.authentication import Caller
from rose_gateway.jobs.job_answer import failure
from rose_gateway.jobs.job_client import Submission
from rose_gateway.services import Services


async def prompt_tokens(
    services: Services,
    caller: Caller,
    submission: Submission,
    wanted: Literal["count", "ids"] = "count",
) -> FinishedEvent:
    """Of a submission, by what would be asked of the queue. It goes before what takes long.

    Raises: ApiError, InvalidRequest, QueueFull, TenantLimited, JobNotFound, BrokerUnavailable
    """
    asked = replace(
        submission,
        record=replace(submission.record, choices=1, store=False, background=False),
        sampling={"max_new_tokens": 1},
        priority=caller.limits.max_priority,
        idempotency_key=None,
        prompt_only=wanted,
    )
    group = await services.jobs.submit(caller, asked, listed=False)
    try:
        async with aclosing(group.bursts()) as bursts:
            async for burst in bursts:
                event = burst[-1][1]
                if isinstance(event, FinishedEvent):
                    return event
                if event.is_terminal:
                    raise failure(event, group)  # type: ignore[arg-type]
    finally:
        await group.delete()
    raise JobNotFound(f"job {group.id} ended without a terminal event")
