"""The endpoint of a response: from its request to the queue, from its jobs to the answer."""

from typing import Any

from rose_gateway.jobs.jobs import JobGroup, Submission
from rose_gateway.requests.incoming_request import IncomingRequest
from rose_gateway.responses import rendering
from rose_gateway.responses.history import before, referred
from rose_gateway.responses.schema import CreateResponse
from rose_gateway.responses.submission import submission
from rose_gateway.services import Services


async def make_submission(incoming: IncomingRequest, request: CreateResponse) -> Submission:
    """Raises: BadRequest, ApiError, JobNotFound, BrokerUnavailable"""
    services, caller = incoming.services, incoming.caller
    model = await services.catalogue.resolve(request.model)
    history = await before(services, caller, request.previous_response_id)
    items = await referred(services, caller, request)
    return submission(incoming, request, model, history, items)


async def answer(services: Services, group: JobGroup, *, pause_s: float = 0.0) -> dict[str, Any]:
    """The response when it has ended. `pause_s`: as for `JobGroup.bursts`.

    Raises: ApiError, JobNotFound, BrokerUnavailable
    """
    events = await rendering.events_of(services, group)
    return await rendering.answered(group, events, pause_s=pause_s)
