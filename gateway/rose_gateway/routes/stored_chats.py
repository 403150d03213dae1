"""Chat completions that were asked for with store: true, for as long as their jobs are known."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from rose.errors import JobNotFound, MalformedMessage
from rose_gateway.access.authentication import Caller, current_request
from rose_gateway.chat.endpoint import ENDPOINT as CHAT
from rose_gateway.chat.schema import ChatAnswer, ChatParameters
from rose_gateway.errors import ApiError
from rose_gateway.jobs.job_client import JobGroup
from rose_gateway.listing import Page
from rose_gateway.openapi import answer_of, inlined
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.routes.dependencies import CallerDependency, Limit, ServicesDependency
from rose_gateway.services import Services

router = APIRouter(prefix="/v1/chat/completions", tags=["chat"])

CompletionId = Annotated[str, Path(max_length=128, description="chatcmpl-...")]
_Order = Annotated[Literal["asc", "desc"], Query(description="desc: the newest first")]
_PREFIX = "chatcmpl-"


class ChatList(Page[ChatAnswer]):
    """By age."""


class StoredMessages(Page[dict[str, Any]]):
    """As they were sent, each with an id."""


class DeletedChat(BaseModel):
    id: str
    object: Literal["chat.completion.deleted"] = "chat.completion.deleted"
    deleted: Literal[True] = True


@router.get(
    "",
    summary="List stored chat completions",
    responses={
        200: {
            "description": "A page of those that have ended well.",
            "content": {"application/json": {"schema": inlined(ChatList, "serialization")}},
        }
    },
    response_model=None,
)
async def list_chats(
    services: ServicesDependency,
    caller: CallerDependency,
    after: Annotated[
        str | None, Query(max_length=128, description="the id of one: those that follow it")
    ] = None,
    limit: Limit = 20,
    order: _Order = "asc",
    model: Annotated[str | None, Query(max_length=256, description="only of this one")] = None,
) -> Response:
    """Of the caller's last 1,000 jobs those that store: true asked to keep."""
    jobs = [
        job.job_id
        for job in await services.history.jobs(caller.key_id)
        if job.queue in services.clients
    ]
    if order == "asc":
        jobs.reverse()
    if after is not None:
        if (job_id := after.removeprefix(_PREFIX)) not in jobs:
            raise BadRequest("after: no chat completion with this id is in the list", "after")
        jobs = jobs[jobs.index(job_id) + 1 :]
    found: list[dict[str, Any]] = []
    while jobs and len(found) <= limit:
        some, jobs = jobs[: limit + 1], jobs[limit + 1 :]
        answers = await asyncio.gather(*(_listed(services, caller, id_, model) for id_ in some))
        found += [answer for answer in answers if answer is not None]
    current_request().job_id = ""  # no one of them
    page = found[:limit]
    more = len(found) > limit
    return JSONResponse(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": more,
        }
    )


@router.get(
    "/{completion_id}",
    summary="Retrieve a stored chat completion",
    responses=answer_of(ChatAnswer),
    response_model=None,
)
async def retrieve_chat(
    completion_id: CompletionId, services: ServicesDependency, caller: CallerDependency
) -> Response:
    return JSONResponse(await CHAT.answer(services, await _found(services, caller, completion_id)))


@router.get("/{completion_id}/messages", summary="List the messages of a stored chat completion")
async def list_chat_messages(
    completion_id: CompletionId,
    services: ServicesDependency,
    caller: CallerDependency,
    after: Annotated[
        str | None, Query(max_length=160, description="the id of a message: those that follow it")
    ] = None,
    limit: Limit = 20,
    order: _Order = "asc",
) -> StoredMessages:
    group = await _found(services, caller, completion_id)
    messages = _messages(group)
    if order == "desc":
        messages = messages[::-1]
    return StoredMessages.after(messages, after, limit, "the chat has no message with this id")


@router.delete("/{completion_id}", summary="Delete a stored chat completion")
async def delete_chat(
    completion_id: CompletionId, services: ServicesDependency, caller: CallerDependency
) -> DeletedChat:
    group = await _found(services, caller, completion_id)
    await group.delete()
    return DeletedChat(id=f"{_PREFIX}{group.id}")


def _messages(group: JobGroup) -> Sequence[dict[str, Any]]:
    stored: Sequence[Mapping[str, Any]] = group.own_record.request.get("messages", ())
    return [{"id": f"{_PREFIX}{group.id}-{n}", **message} for n, message in enumerate(stored)]


async def _found(services: Services, caller: Caller, given: str) -> JobGroup:
    """Raises: ApiError: 404"""
    try:
        group = await services.jobs.find(caller, given.removeprefix(_PREFIX), "chat")
    except (JobNotFound, MalformedMessage):
        group = None
    if group is None or not _is_stored(group):
        raise ApiError(
            404,
            f"there is no stored chat completion {given[:128]!r}: it was asked for without store: "
            "true, has not ended, was deleted, or has expired",
            param="completion_id",
            code="not_found",
        )
    return group


def _is_stored(group: JobGroup) -> bool:
    parameters = ChatParameters.from_record(group.own_record.request)
    return group.status == "finished" and bool(parameters.messages)


async def _listed(
    services: Services, caller: Caller, job_id: str, model: str | None
) -> dict[str, Any] | None:
    """Raises: BrokerUnavailable"""
    try:
        group = await _found(services, caller, job_id)
        if model is not None and group.own_record.model != model:
            return None
        return await CHAT.answer(services, group)
    except (ApiError, JobNotFound, MalformedMessage):
        return None
