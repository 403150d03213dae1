"""What earlier responses bring into a conversation: all of one, or items that are named."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rose.errors import JobNotFound
from rose.protocol import TERMINAL_STATUSES
from rose_gateway.access.authentication import Caller
from rose_gateway.errors import ApiError
from rose_gateway.jobs.job_client import JobGroup, Submission
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.responses import rendering
from rose_gateway.responses.events import job_id_of
from rose_gateway.responses.items import PREFIXES, shown_input
from rose_gateway.responses.parameters import Item
from rose_gateway.responses.schema import CreateResponse, ItemReference
from rose_gateway.services import Services
from rose_gateway.storage.conversations import Turn, Turns, check_size

#: The most responses whose items a request may name.
_MAX_REFERRED = 64

# Ids of items hold that of their job: msg_JOB, fc_JOB_1, msg_JOB_in_2.
_ITEM_ID = re.compile(rf"(?:{'|'.join(PREFIXES.values())})_(.+?)(?:_in)?(?:_\d+)?")


@dataclass(frozen=True, slots=True)
class Previous:
    """The response that another one goes on from."""

    before: Turns
    turn: Turn

    @property
    def items(self) -> tuple[Item, ...]:
        return (*self.before.items, *self.turn.items)

    def check_size(self, submission: Submission) -> None:
        """Raises: JobTooLarge: this is too much to go on from it."""
        own = len(json.dumps(self.turn.items))
        check_size(self.before.size + own + len(submission.record.encode()))


async def find_previous(services: Services, caller: Caller, previous: str) -> Previous:
    """
    Raises:
        BadRequest: it goes on, or has no answer.
        ApiError: 404
    """
    param = "previous_response_id"
    try:
        group = await services.jobs.find(caller, job_id_of(previous), "response")
    except JobNotFound:
        raise _not_found(f"there is no response {previous[:128]!r} to go on from") from None
    link = group.own_record.link
    try:
        before = await services.conversations.before(link)
    except JobNotFound as error:
        raise _not_found(str(error)) from None
    if group.status not in TERMINAL_STATUSES:
        raise BadRequest(f"{param}: it has not ended yet: retrieve it until it has", param)
    response = await rendering.ended(group, await rendering.events_of(services, group))
    if response["status"] not in ("completed", "incomplete"):
        raise BadRequest(f"{param}: its status is {response['status']}, so it has no answer", param)
    return Previous(before, Turn(group.id, link, whole(group, response)))


def _not_found(message: str) -> ApiError:
    return ApiError(404, message, param="previous_response_id", code="previous_response_not_found")


def whole(group: JobGroup, response: Mapping[str, Any]) -> tuple[Item, ...]:
    """The input and output of a response that has ended, as the next one reads them, without the
    turns before it."""
    return (*shown_input(rendering.parameters_of(group), group.id), *_output(response))


async def referred(
    services: Services, caller: Caller, request: CreateResponse
) -> Mapping[str, Item]:
    """The items that the input names by their ids.

    Raises:
        BadRequest: they are of too many responses.
        ApiError: 404
    """
    if isinstance(request.input, str):
        return {}
    found: dict[str, Item] = {}
    read: set[str] = set()
    for number, item in enumerate(request.input):
        if not isinstance(item, ItemReference):
            continue
        match = _ITEM_ID.fullmatch(item.id)
        job_id = match[1] if match else ""
        if job_id and job_id not in read:
            read.add(job_id)
            if len(read) > _MAX_REFERRED:
                raise BadRequest(
                    f"input: names items of more than {_MAX_REFERRED} responses", "input"
                )
            found |= await _items_of(services, caller, job_id)
        if item.id not in found:
            raise ApiError(
                404,
                f"there is no item {item.id[:128]!r}: items are kept with their response",
                param=f"input[{number}].id",
                code="item_not_found",
            )
    return found


async def _items_of(services: Services, caller: Caller, job_id: str) -> dict[str, Item]:
    try:
        group: JobGroup = await services.jobs.find(caller, job_id, "response")
    except JobNotFound:
        return {}
    response = await rendering.current(group, await rendering.events_of(services, group))
    return {item["id"]: item for item in whole(group, response)}


def _output(response: Mapping[str, Any]) -> tuple[Item, ...]:
    """Without log-probabilities, which no model reads."""
    return tuple(
        {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}
        if item["type"] == "message"
        else item
        for item in response["output"]
    )
