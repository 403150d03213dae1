"""Sends a line to the same endpoints that answer HTTP requests: same checks, same answers.

A line is sent again until it has an answer. A full queue, a tenant at its limit, a Redis that is
away, a job that Redis has lost: these cost time. Whoever sends the same line of the same batch
again, after a crash or beside somebody else, gets the job that the first one has made.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rose import transport
from rose.errors import BrokerUnavailable, JobNotFound, QueueFull, RoseError, TenantLimited
from rose.protocol import Priority
from rose_gateway.access.authentication import Caller, RequestContext, in_request
from rose_gateway.answers.endpoint import IncomingRequest, lines_key
from rose_gateway.batches.line import (
    Answer,
    AnswerWriter,
    Line,
    LineRequest,
    custom_id_of,
    read_request,
)
from rose_gateway.chat.endpoint import ENDPOINT as CHAT
from rose_gateway.chat.schema import UNSUPPORTED as CHAT_UNSUPPORTED
from rose_gateway.chat.schema import ChatRequest
from rose_gateway.completions.endpoint import ENDPOINT as COMPLETION
from rose_gateway.completions.schema import UNSUPPORTED as COMPLETION_UNSUPPORTED
from rose_gateway.completions.schema import CompletionRequest
from rose_gateway.embeddings.endpoint import EMBEDDINGS, RERANK, SCORE
from rose_gateway.embeddings.schema import EmbeddingsRequest, RerankRequest, ScoreRequest
from rose_gateway.errors import ApiError, api_error
from rose_gateway.jobs.job_client import JobGroup, Submission
from rose_gateway.messages import submission as messages
from rose_gateway.messages.rendering import answer as messages_answer
from rose_gateway.messages.schema import UNSUPPORTED as MESSAGE_UNSUPPORTED
from rose_gateway.messages.schema import CreateMessage
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import Unsupported
from rose_gateway.responses import submission as responses
from rose_gateway.responses.schema import UNSUPPORTED as RESPONSE_UNSUPPORTED
from rose_gateway.responses.schema import CreateResponse
from rose_gateway.services import Services
from rose_gateway.settings import KeyLimits
from rose_gateway.storage.batch_repository import LeaseLost

log = logging.getLogger("rose.gateway")

#: How often a line is sent again whose job has vanished: somebody may delete each of them.
_MAX_RESUBMITS = 5

#: Between two tries to cancel the jobs in flight while Redis is away.
_RECANCEL_S = 1.0

#: Between two reads of a line's events: nobody follows them live.
_PAUSE_S = 0.1

_MESSAGES = {
    "line_failed": "servers have failed again and again while they prepared this line",
    "batch_cancelled": "the batch was cancelled before this line was answered",
    "batch_expired": "the batch's time was over before this line was answered",
}


@dataclass(frozen=True, slots=True)
class _Endpoint:
    request: type[BaseModel]
    unsupported: Unsupported
    make_submission: Callable[[IncomingRequest, Any], Awaitable[Submission]]
    answer: Callable[..., Awaitable[dict[str, Any]]]
    """of the services and a job group, with `pause_s` as for `JobGroup.bursts`"""
    error_body: Callable[[ApiError], dict[str, Any]] = ApiError.body


_ENDPOINTS = {
    "/v1/chat/completions": _Endpoint(
        ChatRequest, CHAT_UNSUPPORTED, CHAT.make_submission, CHAT.answer
    ),
    "/v1/completions": _Endpoint(
        CompletionRequest, COMPLETION_UNSUPPORTED, COMPLETION.make_submission, COMPLETION.answer
    ),
    "/v1/responses": _Endpoint(
        CreateResponse, RESPONSE_UNSUPPORTED, responses.make_submission, responses.answer
    ),
    "/v1/embeddings": _Endpoint(
        EmbeddingsRequest, {}, EMBEDDINGS.make_submission, EMBEDDINGS.answer
    ),
    "/v1/rerank": _Endpoint(RerankRequest, {}, RERANK.make_submission, RERANK.answer),
    "/v1/score": _Endpoint(ScoreRequest, {}, SCORE.make_submission, SCORE.answer),
    "/v1/messages": _Endpoint(
        CreateMessage,
        MESSAGE_UNSUPPORTED,
        messages.make_submission,
        messages_answer,
        ApiError.anthropic_body,
    ),
}


class CancellationToken:
    """Cancels the jobs of the lines that a batch has in flight. Belongs to one event loop."""

    def __init__(self) -> None:
        self.code = ""
        """why no further line is begun; "" as long as lines are"""
        self._cancelled = asyncio.Event()
        self._groups: set[JobGroup] = set()
        self._cancelling: set[asyncio.Task[None]] = set()

    def cancel(self, code: str) -> None:
        """Cancel the jobs in flight. The first call decides the code."""
        if not self.code:
            self.code = code
            self._cancelled.set()
            for group in self._groups:
                self._cancel(group)

    async def wait(self, within_s: float) -> None:
        """At most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._cancelled.wait()

    @contextmanager
    def registered(self, group: JobGroup) -> Iterator[None]:
        """Within, a cancellation is one of these jobs too."""
        self._groups.add(group)
        if self.code:
            self._cancel(group)
        try:
            yield
        finally:
            self._groups.discard(group)

    def _cancel(self, group: JobGroup) -> None:
        task = asyncio.create_task(self._until_cancelled(group))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _until_cancelled(self, group: JobGroup) -> None:
        while group in self._groups:
            try:
                await group.cancel()
            except JobNotFound:
                return
            except BrokerUnavailable:
                await asyncio.sleep(_RECANCEL_S)
            else:
                return


class LineProcessor:
    """For one batch. Belongs to one event loop."""

    def __init__(
        self, services: Services, caller: Caller, batch_id: str, *, endpoint: str | None = None
    ) -> None:
        """`caller`: whose jobs they are. Its limits of rates are for requests that somebody waits
        for. `endpoint`: other lines are refused; None: each line says its own."""
        self.trouble = ""
        """why lines wait; "" if they do not"""
        self._services = services
        limits = KeyLimits(models=caller.limits.models)
        self._caller = Caller(caller.key_id, limits, caller.tenant)
        self._batch_id = batch_id
        self._endpoint = endpoint
        self._write = AnswerWriter(batch_id)

    async def process(self, line: Line, cancellation: CancellationToken) -> Answer:
        """The answer, whatever it is. Raises: LeaseLost, and nothing else but
        asyncio.CancelledError"""
        if cancellation.code:
            await asyncio.sleep(0)  # there may be many
            return self.stopped_answer(line, cancellation.code)
        await self._services.pacer.wait_for(len(line.raw))
        async with self.preparing(line):
            try:
                nesting = self._services.settings.max_nesting
                request = read_request(line, max_nesting=nesting, endpoint=self._endpoint)
            except BadRequest as error:
                return self._write.refused(line, custom_id_of(line), error)
        with in_request(RequestContext(self._write.request_id(line))):
            try:
                return await self._answered(line, request, cancellation)
            except LeaseLost:
                raise
            except Exception as error:
                answer = api_error(error)
                if answer.status == 500 and not isinstance(error, RoseError):
                    log.exception("a line of a batch failed")
                return self._failed(line, request, answer, cancellation)

    def stopped_answer(self, line: Line, code: str) -> Answer:
        """For a line that no runner sends any more; `code`: batch_cancelled or batch_expired."""
        return self._write.unanswered(line, custom_id_of(line), code, _MESSAGES[code], None)

    def given_up_answer(self, line: Line) -> Answer:
        """For a line that is not looked at any more."""
        return self._write.unanswered(line, None, "line_failed", _MESSAGES["line_failed"], None)

    def preparing(self, line: Line) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        """Around whatever is done with the content of a line."""
        return nullcontext()

    async def _answered(
        self, line: Line, request: LineRequest, cancellation: CancellationToken
    ) -> Answer:
        """Raises: ApiError, RoseError"""
        incoming, endpoint = self._incoming(line, request), _ENDPOINTS[request.url]
        async with self.preparing(line):
            parsed = incoming.parsed(endpoint.request, endpoint.unsupported)
        failures = resubmits = 0
        while not cancellation.code:
            min_pause_s = 0.0
            try:
                async with self.preparing(line):
                    submission = await endpoint.make_submission(incoming, parsed)
                    # So many would push out of the history what a person has requested.
                    group = await self._services.jobs.submit(self._caller, submission, listed=False)
                self.trouble = ""
                with cancellation.registered(group):
                    body = await endpoint.answer(self._services, group, pause_s=_PAUSE_S)
                return self._succeeded(line, request, body, group, cancellation)
            except (QueueFull, BrokerUnavailable) as error:
                self._note_trouble(str(error))
            except TenantLimited as error:
                if error.retry_after_s is None:
                    raise
                self._note_trouble(str(error))
                min_pause_s = error.retry_after_s
            except JobNotFound:
                resubmits += 1
                if resubmits > _MAX_RESUBMITS:
                    raise
            except ApiError as error:
                if not await self._awaits_first_worker(error):
                    raise
                self._note_trouble("no worker has come yet")
            failures += 1
            await cancellation.wait(max(min_pause_s, transport.BATCH.pause_s(failures)))
        return self.stopped_answer(line, cancellation.code)

    def _incoming(self, line: Line, request: LineRequest) -> IncomingRequest:
        """Raises: BadRequest: what a line cannot request."""
        for name in ("stream", "background"):
            if request.body.get(name) is True:
                raise BadRequest(
                    f"{name}: the lines of a batch are answered in its output: leave it out",
                    name,
                    code="unsupported_parameter",
                )
        return IncomingRequest(
            services=self._services,
            caller=self._caller,
            body=request.body,
            sha256=hashlib.sha256(line.raw).hexdigest(),
            idempotency_key=lines_key(self._caller, self._batch_id, line.number),
            priority=Priority.LOW,
        )

    async def _awaits_first_worker(self, error: ApiError) -> bool:
        """Whether the model is unknown only because no worker has announced any."""
        if error.code != "model_not_found":
            return False
        try:
            return not await self._services.catalogue.models()
        except BrokerUnavailable:
            return True

    def _note_trouble(self, trouble: str) -> None:
        if not self.trouble:
            log.warning("a batch waits: %s", trouble)
        self.trouble = trouble

    def _succeeded(
        self,
        line: Line,
        request: LineRequest,
        body: dict[str, Any],
        group: JobGroup,
        cancellation: CancellationToken,
    ) -> Answer:
        status = body.get("status")  # responses have one, and are answered whatever it is
        if status == "cancelled" and cancellation.code:
            return self.stopped_answer(line, cancellation.code)
        return self._write.answered(
            line,
            request.custom_id,
            body,
            status=200,
            succeeded=status not in ("failed", "cancelled"),
            group=group,
        )

    def _failed(
        self, line: Line, request: LineRequest, error: ApiError, cancellation: CancellationToken
    ) -> Answer:
        if error.code == "cancelled" and cancellation.code:
            return self.stopped_answer(line, cancellation.code)
        body = _ENDPOINTS[request.url].error_body(error)
        return self._write.answered(
            line, request.custom_id, body, status=error.status, succeeded=False
        )
