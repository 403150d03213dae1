"""The objects that the API answers with, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from rose_gateway.listing import Page
from rose_gateway.responses.events import ResponseStatus
from rose_gateway.responses.output import ItemStatus


class InputTokensDetails(BaseModel):
    cached_tokens: int
    """of the input, found in the worker's prefix cache"""
    cache_write_tokens: int


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(BaseModel):
    code: Literal["server_error", "invalid_prompt", "context_length_exceeded"]
    message: str
    param: str | None
    type: str = Field(description="what happened, such as deadline_exceeded or crash_loop")


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class OutputItem(BaseModel):
    id: str
    type: Literal["message", "function_call"]
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[dict[str, Any]] = Field(default=[], description="of a message: output_text")
    call_id: str = Field(default="", description="of a function_call")
    name: str = Field(default="", description="of a function_call")
    arguments: str = Field(default="", description="of a function_call: JSON text")


class ResponseObject(BaseModel):
    """A response. What was asked for stands in it as it was understood."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[OutputItem]
    usage: ResponseUsage | None = Field(description="of a response that completed or is incomplete")
    model: str
    previous_response_id: str | None
    instructions: str | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    max_tool_calls: int | None
    text: dict[str, Any]
    reasoning: dict[str, Any]
    truncation: Literal["disabled"]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    metadata: dict[str, str]
    service_tier: Literal["default", "flex", "priority"]
    store: bool
    background: bool
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemList(Page[dict[str, Any]]):
    """Items of a conversation."""
