"""What chat and plain completions have in common: a request becomes jobs, each job a choice of the
answer, and the answer is streamed or whole."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from starlette.responses import Response

from rose_gateway.answers.chunk_maker import AnswerHeader
from rose_gateway.answers.rendering import Chunks, Collector, collected
from rose_gateway.jobs.jobs import JobGroup, Submission
from rose_gateway.requests.http_request import IncomingHttpRequest, check_kept, delivered
from rose_gateway.requests.incoming_request import IncomingRequest
from rose_gateway.services import Services

Made = TypeVar("Made")


class StorableRequest(Protocol):
    @property
    def store(self) -> bool | None: ...


class Parameters(Protocol):
    """What a request asked for, as its record keeps it."""

    @property
    def stream(self) -> bool: ...

    @property
    def vocabulary(self) -> str:
        """Its key; "" where no token is to be named."""


Request = TypeVar("Request", bound=StorableRequest, contravariant=True)


@dataclass(frozen=True, slots=True)
class ChoicesEndpoint(Generic[Request]):
    make_submission: Callable[[IncomingRequest, Request], Awaitable[Submission]]
    """Raises: BadRequest, ApiError, BrokerUnavailable"""
    parameters: Callable[[Mapping[str, Any]], Parameters]
    """of a record's request. Raises: MalformedMessage"""
    make_chunks: Callable[..., Chunks]
    make_collector: Callable[..., Collector]

    async def respond(self, incoming: IncomingHttpRequest, request: Request) -> Response:
        """Raises: BadRequest, ApiError, ClientGone, JobNotFound, BrokerUnavailable"""
        check_kept(incoming, request.store)
        group = await incoming.services.jobs.submit(
            incoming.caller, await self.make_submission(incoming, request)
        )
        make = self.chunks if self.parameters(group.own_record.request).stream else self.collector
        output = await make(incoming.services, group)
        return await delivered(incoming, group, output)

    async def answer(
        self, services: Services, group: JobGroup, *, pause_s: float = 0.0
    ) -> dict[str, Any]:
        """The whole answer, when it has ended. `pause_s`: as for `JobGroup.bursts`.

        Raises: ApiError, JobNotFound, BrokerUnavailable
        """
        collector = await self.collector(services, group)
        return await collected(group, collector, pause_s=pause_s)

    async def collector(self, services: Services, group: JobGroup) -> Collector:
        """Raises: MalformedMessage, BrokerUnavailable"""
        return await self._made(self.make_collector, services, group)

    async def chunks(self, services: Services, group: JobGroup) -> Chunks:
        """The stream, whatever the request was for. Raises: MalformedMessage, BrokerUnavailable"""
        return await self._made(self.make_chunks, services, group)

    async def _made(self, make: Callable[..., Made], services: Services, group: JobGroup) -> Made:
        record = group.own_record
        parameters = self.parameters(record.request)
        names = await services.vocabularies.get(parameters.vocabulary)
        header = AnswerHeader([job.id for job in group.jobs], record.model, group.created_at)
        return make(parameters, header, names)
