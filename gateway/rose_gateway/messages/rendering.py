"""A message from its job: as a stream, or as it ended."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from rose.errors import JobNotFound
from rose.protocol import Event, FinishedEvent, TokenEvent
from rose_gateway.jobs.job_answer import failure
from rose_gateway.jobs.job_client import JobGroup
from rose_gateway.messages.events import MessageEvents
from rose_gateway.messages.schema import MessageParameters
from rose_gateway.services import Services

_ANSWERS = (TokenEvent, FinishedEvent)


def parameters_of(group: JobGroup) -> MessageParameters:
    """Raises: MalformedMessage"""
    return MessageParameters.from_record(group.own_record.request)


async def events_of(services: Services, group: JobGroup, after: int | None) -> MessageEvents:
    """`after`: as `MessageEvents` has it. Raises: MalformedMessage, BrokerUnavailable"""
    parameters = parameters_of(group)
    seal = None
    if parameters.form.thoughts:
        seal = await services.sealing.seal(parameters.sealed_for)
    warnings = group.own_record.warnings
    return MessageEvents(parameters, group.id, after=after, warnings=warnings, seal=seal)


async def streamed(
    services: Services, group: JobGroup, after: int = -1, *, held: bool = False
) -> AsyncGenerator[bytes, None]:
    """The frames of a stream; those that are ready together come together. There are none where the
    reader has its end. `held`: nothing comes before the first event of the job.

    Raises:
        ApiError: `held`, and the job failed before anything came.
        JobNotFound, BrokerUnavailable, MalformedMessage
    """
    events = await events_of(services, group, after)
    opening = events.begin()
    if opening and not held:
        yield opening
        opening = b""
    async with aclosing(group.bursts()) as bursts:
        async for burst in bursts:
            if held and not isinstance(burst[0][1], _ANSWERS):
                raise failure(burst[0][1], group)
            held = False
            frames = opening + b"".join([_fed(events, group, event) for _, event in burst])
            opening = b""
            if frames:
                yield frames


def _fed(events: MessageEvents, group: JobGroup, event: Event) -> bytes:
    if isinstance(event, _ANSWERS):
        return events.feed(event)
    return events.failed(failure(event, group))


async def answer(services: Services, group: JobGroup, *, pause_s: float = 0.0) -> dict[str, Any]:
    """The whole message, when it has ended. `pause_s`: as for `JobGroup.bursts`.

    Raises:
        ApiError: the job has failed.
        JobNotFound, BrokerUnavailable, MalformedMessage
    """
    events = await events_of(services, group, None)
    events.begin()
    async with aclosing(group.bursts(pause_s=pause_s)) as bursts:
        async for burst in bursts:
            for _, event in burst:
                if not isinstance(event, _ANSWERS):
                    raise failure(event, group)
                events.feed(event)
                if events.message is not None:
                    return events.message
    raise JobNotFound(f"job {group.id} ended without a terminal event")
