"""A long conversation made short: what its users said, and a summary of it by the model.

The summary's item holds a text that only this server reads; it is no secret, for whoever holds it
also has the conversation.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from rose_gateway.answers.endpoint import ServiceTier
from rose_gateway.errors import ApiError
from rose_gateway.jobs.job_client import JobGroup
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.sampling import RequestModel
from rose_gateway.requests.thinking import Reasoning
from rose_gateway.responses import rendering
from rose_gateway.responses.items import packed_summary, shown_input
from rose_gateway.responses.parameters import Item
from rose_gateway.responses.rendering import ResponseUsage
from rose_gateway.responses.schema import MAX_ITEMS, CreateResponse, InputItem, InputMessage

_ASKS = (
    "Write a summary of this conversation for somebody who goes on with it and cannot read it. "
    "Say what was asked for and why, what was decided, what was done and found out (with names of "
    "files, commands and figures), what was tried in vain, and what is to be done next. Write "
    "nothing else."
)


class CompactResponse(RequestModel):
    """The body of `POST /v1/responses/compact`."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    input: str | Annotated[list[InputItem], Field(max_length=MAX_ITEMS, fail_fast=True)] | None = (
        Field(default=None, description="a text, or the items of a conversation")
    )
    instructions: str | None = Field(default=None, description="a system message")
    previous_response_id: Annotated[str, Field(max_length=256)] | None = Field(
        default=None, description="an ended response whose conversation comes before the input"
    )
    prompt_cache_key: Annotated[str, Field(max_length=256)] | None = Field(
        default=None, description="accepted; equal prefixes share the cache without it"
    )
    service_tier: ServiceTier | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, description="accepted; none is called")
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = Field(default=None, description="of the summary")
    text: dict[str, Any] | None = Field(default=None, description="accepted")


class CompactedResponse(BaseModel):
    """What the next request may have as its input."""

    id: str
    object: str = "response.compaction"
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


def summary_request(request: CompactResponse) -> CreateResponse:
    """Raises: BadRequest: there is nothing to make short."""
    given = request.input
    if not given and request.previous_response_id is None:
        raise BadRequest(
            "input: is required and missing", "input", code="missing_required_parameter"
        )
    items: list[Any] = list(given) if not isinstance(given, str | None) else []
    if isinstance(given, str):
        items.append(InputMessage(role="user", content=given))
    items.append(InputMessage(role="user", content=_ASKS))
    return CreateResponse.model_construct(
        **{name: field.default for name, field in CreateResponse.model_fields.items()}
        | {
            "model": request.model,
            "input": items,
            "instructions": request.instructions,
            "previous_response_id": request.previous_response_id,
            "service_tier": request.service_tier,
            "reasoning": request.reasoning,
            "store": False,
        }
    )


def compacted(
    before: tuple[Item, ...], group: JobGroup, response: dict[str, Any]
) -> CompactedResponse:
    """From the response to `summary_request`, and the turns before it. Raises: ApiError: it has
    none."""
    if response["status"] not in ("completed", "incomplete"):
        error = response["error"] or {"message": "it was cancelled", "code": "server_error"}
        raise ApiError(503, error["message"], type="server_error", code=error["code"])
    *conversation, _ = (*before, *shown_input(rendering.parameters_of(group), group.id))
    said = [item for item in conversation if item["type"] == "message" and item["role"] == "user"]
    texts = [
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    ]
    summary = {
        "id": f"cmp_{group.id}",
        "type": "compaction",
        "encrypted_content": packed_summary("".join(texts)),
    }
    return CompactedResponse(
        id=f"resp_{group.id}",
        created_at=response["created_at"],
        output=[*said, summary],
        usage=response["usage"],
    )
