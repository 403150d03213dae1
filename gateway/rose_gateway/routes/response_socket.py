"""Responses over a WebSocket: each message of the client's creates one, and its events come back.

The connection remembers its last response, stored or not: the next may go on from it.
"""

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Sequence
from contextlib import aclosing, suppress

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rose.errors import RoseError
from rose_gateway.access.authentication import Caller, RequestContext, identify, in_request
from rose_gateway.answers.endpoint import IncomingRequest, session_of
from rose_gateway.errors import ApiError, ClientGone, api_error
from rose_gateway.http.authentication import secret_of
from rose_gateway.http.error_answers import error_headers
from rose_gateway.http.websocket import Store, Upgrade
from rose_gateway.jobs.job_client import JobGroup
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import compact, json_object, parse
from rose_gateway.responses import rendering, submission
from rose_gateway.responses.history import whole
from rose_gateway.responses.items import input_items
from rose_gateway.responses.parameters import Item
from rose_gateway.responses.schema import UNSUPPORTED, CreateResponse
from rose_gateway.responses.submission import check_together
from rose_gateway.routes.delivery import delivery
from rose_gateway.routes.dependencies import MakerDependency
from rose_gateway.services import Services

log = logging.getLogger("rose.gateway.access")

router = APIRouter(tags=["responses"])

_CREATE = "response.create"
#: What clients tell, and nobody here needs to know.
_NOTES = ("response.processed",)


@router.get("/v1/responses", include_in_schema=False)
async def open_socket(request: Request, caller: MakerDependency) -> Response:
    del caller  # each message is on behalf of whoever its key says then
    upgrade: Upgrade | None = request.scope.get("websocket")
    if upgrade is None:
        raise ApiError(
            405,
            "GET /v1/responses is for WebSockets of version 13: send a POST, or ask for one",
            code="method_not_allowed",
            headers={"allow": "POST"},
        )
    return _Session(upgrade)


class _Session(Response):
    def __init__(self, upgrade: Upgrade) -> None:
        self._upgrade = upgrade
        self.background = None
        self._last: tuple[str, tuple[Item, ...]] | None = None
        """the id of the connection's last response, and the conversation with it"""
        self._last_bytes = 0
        self._continues = False
        """the message that is answered goes on from it"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self._services: Services = scope["app"].state.services
        self._asked = Headers(scope=scope)
        self._store: Store = scope["body_store"]
        context: RequestContext = scope["request_context"]
        settings = self._services.settings
        self._socket = socket = self._upgrade.accept(
            {"x-request-id": context.request_id},
            self._store,
            max_bytes=settings.max_body_bytes,
            patience_s=settings.write_timeout_s,
        )
        context.status = 101
        asking = asyncio.create_task(socket.keep_alive(settings.heartbeat_s))
        try:
            with suppress(ClientGone):
                while (message := await socket.receive()) is not None:
                    await self._answer(message)
        finally:
            asking.cancel()
            socket.end()
            self._store.release(self._last_bytes)
            context.received_bytes += socket.received_bytes
            context.sent_bytes += socket.sent_bytes

    async def _answer(self, message: str) -> None:
        """Raises: ClientGone"""
        context = RequestContext(f"req_{secrets.token_hex(16)}")
        self._continues = False
        with in_request(context):
            try:
                await self._create(message, context)
            except (ApiError, RoseError) as error:
                await self._refuse(api_error(error), context)
            except ClientGone:
                raise
            except Exception as error:
                log.exception("a message of a WebSocket failed")
                await self._refuse(api_error(error), context)
        log.info("WS /v1/responses request=%s job=%s", context.request_id, context.job_id or "none")

    async def _refuse(self, error: ApiError, context: RequestContext) -> None:
        """What could not be gone on from is forgotten: its client begins anew."""
        if self._continues:
            self._forget()
        headers = {
            **context.headers,
            **error_headers(error),
            "x-request-id": context.request_id,
        }
        said = {"type": "error", "status": error.status, **error.body(), "headers": headers}
        await self._socket.send(compact(said))

    async def _create(self, message: str, context: RequestContext) -> None:
        services, body = self._services, message.encode()
        await services.pacer.wait_for(len(body))
        caller = context.caller = await identify(
            secret_of(self._asked), services.keys, services.settings
        )
        fields = json_object(body, max_nesting=services.settings.max_nesting, name="the message")
        kind = fields.pop("type", None)
        if kind in _NOTES:
            return
        if kind != _CREATE:
            raise BadRequest(f"type: must be {_CREATE!r}", "type", code="invalid_value")
        # Everything is streamed; some clients say so.
        wanted = {name: fields.pop(name, None) for name in ("stream", "generate")}
        for name in ("background", "stream_options"):
            if not fields.get(name):
                fields.pop(name, None)
        request = parse(CreateResponse, fields, UNSUPPORTED, name="the message")
        if request.background:
            raise BadRequest("background: not over a WebSocket: send a POST", "background")
        check_together(request)
        history = self._history(request)
        if wanted["generate"] is False:
            await self._keep_only(caller, request, history)
            return
        incoming = IncomingRequest(
            services=services,
            caller=caller,
            body=fields,
            sha256=hashlib.sha256(body).hexdigest(),
            session=session_of(self._asked),
        )
        made = await submission.make_submission(incoming, request, history)
        group = await services.jobs.submit(caller, made)
        context.job_id = group.id
        await self._deliver(group)

    def _history(self, request: CreateResponse) -> tuple[Item, ...] | None:
        if self._last is not None and request.previous_response_id == self._last[0]:
            self._continues = True
            return self._last[1]
        return None

    async def _keep_only(
        self, caller: Caller, request: CreateResponse, history: tuple[Item, ...] | None
    ) -> None:
        """`generate: false`: a client sends early what its next request will begin with."""
        if request.previous_response_id is not None and history is None:
            raise BadRequest(
                "generate: false goes on from the connection's last response alone", "generate"
            )
        model = await self._services.catalogue.resolve(request.model)
        seal = await submission.seal_of(self._services, caller, request, model)
        response_id = f"resp_warm-{secrets.token_hex(12)}"
        own = (
            {"id": f"{response_id}_in_{number}", **item}
            for number, item in enumerate(input_items(request.input, {}, seal))
        )
        self._remember(response_id, (*(history or ()), *own))
        response = {"id": response_id, "object": "response", "model": request.model, "output": []}
        usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        for number, (name, status) in enumerate(
            (("created", "in_progress"), ("completed", "completed"))
        ):
            shown = {**response, "status": status, "usage": usage if number else None}
            event = {"type": f"response.{name}", "sequence_number": number, "response": shown}
            await self._socket.send(compact(event))

    async def _deliver(self, group: JobGroup) -> None:
        """Raises: ClientGone"""
        sending = asyncio.create_task(self._send_events(group))
        leaving = asyncio.create_task(self._socket.gone())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            gone = not sending.done()
            if not gone:
                sending.result()
        except ClientGone:
            gone = True
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if gone:
            if not self._services.stopping.is_set():
                await (group.cancel if group.own_record.store else group.delete)()
            raise ClientGone

    async def _send_events(self, group: JobGroup) -> None:
        events = await rendering.events_of(self._services, group, -1)
        async with delivery(group), aclosing(rendering.streamed(group, events)) as frames:
            async for data in frames:
                for event in _events(data):
                    await self._socket.send(event)
            if events.ended is not None:
                before = await self._services.conversations.before(group.own_record.link)
                items = (*before.items, *whole(group, events.ended))
                self._remember(events.ended["id"], items)

    def _remember(self, response_id: str, items: Sequence[Item]) -> None:
        """As far as there is room."""
        self._forget()
        size = len(json.dumps(items))
        with suppress(ApiError):
            self._store.hold(size)
            self._last, self._last_bytes = (response_id, tuple(items)), size

    def _forget(self) -> None:
        self._store.release(self._last_bytes)
        self._last, self._last_bytes = None, 0


def _events(frames: bytes) -> list[str]:
    """The data of each event, without the word that ends a stream."""
    return [
        line.removeprefix(b"data: ").decode()
        for line in frames.split(b"\n")
        if line.startswith(b"data: {")
    ]
