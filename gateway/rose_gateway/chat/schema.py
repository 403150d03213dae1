"""A chat completion: its request and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rose.errors import MalformedMessage
from rose_gateway.answers.endpoint import (
    MAX_CHOICES,
    Metadata,
    ServiceTier,
    StreamOptions,
)
from rose_gateway.answers.rendering import Usage
from rose_gateway.jobs.job_group import fields_of
from rose_gateway.requests.conversation import Message
from rose_gateway.requests.other_servers import OF_OTHER_SERVERS
from rose_gateway.requests.parsing import Unsupported
from rose_gateway.requests.sampling import DetailedSamplingRequest, ResponseFormat
from rose_gateway.requests.thinking import ThinkingRequest
from rose_gateway.requests.warnings import ShownWarning
from rose_gateway.tools.tools import MAX_TOOLS, CallForm, ChatTool, ChatToolChoice

#: -1 as LM Studio's clients say it: no limit.
_TokenCount = Annotated[int, Field(ge=1, le=2**31 - 1)] | Literal[-1]


class ChatRequest(ThinkingRequest, DetailedSamplingRequest):
    """A conversation to go on with. Null means that a field is not given."""

    model: Annotated[str, Field(min_length=1, description="a name of GET /v1/models")]
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_completion_tokens: _TokenCount | None = Field(
        default=None,
        description="maximum number of tokens; by default, and with -1, what the context holds",
    )
    max_tokens: _TokenCount | None = Field(
        default=None, description="the older name of max_completion_tokens"
    )
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        default=None, description="answers to generate; each is a job"
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = Field(
        default=None,
        description="a `json_object` may have a schema as its `value`, as Hugging Face's clients "
        "send it",
    )
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = Field(
        default=None, description="true by default; false ends the answer after one call"
    )
    continue_final_message: bool | None = Field(
        default=None,
        description="vLLM's: the last message is the assistant's, and the answer continues it, as "
        "with `prefix` of the message. Without either an answer is a new message",
    )
    add_generation_prompt: bool | None = Field(
        default=None, description="false only together with continue_final_message"
    )
    metadata: Metadata | None = Field(default=None, description="returned with the answer")
    store: bool | None = Field(
        default=None,
        description="true keeps the messages with the answer, for GET /v1/chat/completions, as "
        "long as the job is known; false deletes the job once it is delivered, so it cannot be "
        "resumed",
    )
    service_tier: ServiceTier | None = Field(
        default=None,
        description="the queue's priority: flex is low, auto and default are normal, priority, "
        "fast and scale are high",
    )
    user: str | None = Field(default=None, description="accepted, changes nothing")
    safety_identifier: str | None = Field(default=None, description="accepted, changes nothing")
    prompt_cache_key: str | None = Field(
        default=None,
        description="a hint for [placement](operations.md#placement); equal prefixes share the "
        "cache without it",
    )


#: Null asks for nothing anywhere; beside it the values that do. And why others are refused.
UNSUPPORTED: Unsupported = {
    "audio": ((), "this server's models write text alone"),
    "function_call": (("none",), "is deprecated and not supported: use tool_choice"),
    "functions": (([],), "is deprecated and not supported: use tools"),
    "modalities": ((["text"],), "this server's models write text alone"),
    "moderation": ((), "this server has no moderation"),
    "prediction": ((), "predicted outputs are not supported"),
    "prompt_cache_options": ((), "the prefix cache has no options"),
    "prompt_cache_retention": (("in_memory",), "the prefix cache has no options"),
    "verbosity": (("medium",), "this server's models have no verbosity that can be chosen"),
    "web_search_options": ((), "this server searches nothing"),
    **OF_OTHER_SERVERS,
}


class FunctionCallAnswer(BaseModel):
    name: str
    arguments: str


class ToolCallAnswer(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCallAnswer


class TopLogprob(BaseModel):
    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprobAnswer(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    content: list[TokenLogprobAnswer] | None
    refusal: list[TokenLogprobAnswer] | None = None


class MessageAnswer(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = Field(
        default=None, description="the model's thoughts, if there are any"
    )
    reasoning: str | None = Field(default=None, description="the same, by another name")
    tool_calls: list[ToolCallAnswer] | None = None
    annotations: list[str] = Field(default_factory=list, max_length=0)


FinishReason = Literal["stop", "length", "tool_calls"]


class ChoiceAnswer(BaseModel):
    index: int
    message: MessageAnswer
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChoiceAnswer]
    usage: Usage
    service_tier: str
    system_fingerprint: str | None = None
    metadata: dict[str, str] | None = None
    warnings: list[ShownWarning] | None = None


@dataclass(frozen=True, slots=True)
class ChatParameters:
    """All that the answer depends on beside the log."""

    form: CallForm = field(default_factory=CallForm)
    logprobs: bool = False
    include_usage: bool = False
    stream: bool = False
    tier: str = "default"
    metadata: Mapping[str, str] = field(default_factory=dict)
    vocabulary: str = ""
    """the key of the vocabulary that names the tokens"""
    grammar: str = ""
    """what the request calls the grammar of its text"""
    messages: tuple[Mapping[str, Any], ...] = ()
    """those of the request, where it asked to store them"""

    def as_record(self) -> dict[str, Any]:
        """JSON values for `Record.request`."""
        return fields_of(self) | {"form": self.form.as_record()}

    @classmethod
    def from_record(cls, request: Mapping[str, Any]) -> ChatParameters:
        """Raises: MalformedMessage: `as_record` has not written it."""
        try:
            form = CallForm.from_record(request["form"])
            return cls(**{**request, "form": form, "messages": tuple(request.get("messages", ()))})
        except (KeyError, TypeError, ValueError):
            raise MalformedMessage("the job's record is not that of a chat completion") from None
