"""What a request may say, as OpenAI names it. Whatever this server cannot honour is refused."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from rose_gateway.answers.endpoint import Metadata, ServiceTier
from rose_gateway.requests.conversation import Content
from rose_gateway.requests.other_servers import OF_OTHER_SERVERS
from rose_gateway.requests.parsing import Unsupported
from rose_gateway.requests.sampling import (
    DetailedSamplingRequest,
    JsonObjectFormat,
    JsonSchema,
    RequestModel,
    ReturnedModel,
    TextFormat,
)
from rose_gateway.tools.tools import MAX_TOOLS, FunctionDefinition, NamedFunction

MAX_ITEMS = 4096

_ItemId = Annotated[str, Field(min_length=1, max_length=256)]
_CallId = Annotated[str, Field(min_length=1, max_length=128)]
_CalledName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
_Status = Literal["in_progress", "completed", "incomplete"]
_Identifier = Annotated[str, Field(max_length=256)]


class InputMessage(RequestModel):
    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer"]
    content: Content
    id: _ItemId | None = None
    status: _Status | None = None
    phase: None = None


class OutputMessage(ReturnedModel):
    type: Literal["message"] = "message"
    role: Literal["assistant"]
    content: Content
    id: _ItemId | None = None
    status: _Status | None = None


class FunctionCall(ReturnedModel):
    type: Literal["function_call"]
    call_id: _CallId
    name: _CalledName
    arguments: str = Field(description="the text of a JSON object")
    id: _ItemId | None = None
    status: _Status | None = None


class FunctionCallOutput(RequestModel):
    type: Literal["function_call_output"]
    call_id: _CallId
    output: Content
    id: _ItemId | None = None
    status: _Status | None = None
    name: str | None = None


class ReasoningItem(ReturnedModel):
    """It stays in the conversation; the models here do not read it."""

    type: Literal["reasoning"]
    id: _ItemId | None = None
    summary: list[dict[str, Any]] = Field(
        default_factory=list, max_length=MAX_ITEMS, fail_fast=True
    )
    content: Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS, fail_fast=True)] | None = (
        None
    )
    encrypted_content: str | None = None
    status: _Status | None = None


class ItemReference(RequestModel):
    """An item of an earlier response, of its input or its output."""

    type: Literal["item_reference"] | None = None
    id: _ItemId


def _kind(item: Any) -> str:
    """Messages and references may come without a type."""
    fields = item if isinstance(item, dict) else vars(item) if isinstance(item, BaseModel) else {}
    kind = fields.get("type")
    if kind is None:
        kind = "message" if "role" in fields else "item_reference"
    if kind == "message" and fields.get("role") == "assistant":
        return "assistant"
    return kind if isinstance(kind, str) else ""


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[OutputMessage, Tag("assistant")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(
        _kind,
        custom_error_type="unsupported_item",
        custom_error_message="items of this type are not supported: send messages, function_call, "
        "function_call_output, reasoning or item_reference",
    ),
]


class _Function(RequestModel):
    """The last base, as its field is then looked at first: whoever asks for a tool of another type
    is told of the type, and not of the name that is missing."""

    type: Literal["function"]


class FunctionTool(FunctionDefinition, _Function):
    pass


class FunctionChoice(NamedFunction, _Function):
    pass


class AllowedTools(RequestModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[FunctionChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    ]


ToolChoice = Literal["none", "auto", "required"] | FunctionChoice | AllowedTools


class JsonSchemaFormat(JsonSchema):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class TextConfig(RequestModel):
    format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
        | None
    ) = None
    verbosity: Literal["medium"] | None = None


class StreamOptions(RequestModel):
    include_obfuscation: bool | None = Field(
        default=None, description="accepted; streams carry no padding"
    )


Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]

LOGPROBS: Includable = "message.output_text.logprobs"


class CreateResponse(DetailedSamplingRequest):
    """The body of `POST /v1/responses`. Fields from `top_k` on are this project's own."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    input: str | Annotated[list[InputItem], Field(max_length=MAX_ITEMS, fail_fast=True)] = Field(
        description="a text, or the items of a conversation"
    )
    instructions: str | None = Field(
        default=None, description="a system message; not carried over to the next response"
    )
    previous_response_id: Annotated[str, Field(max_length=256)] | None = Field(
        default=None, description="an ended response to continue from"
    )
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        default=None, description="by default as many as the model's context holds"
    )
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        default=None, description="accepted; it limits built-in tools, which do not exist here"
    )
    text: TextConfig | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        default=None, description="above 0, return log-probabilities with the text"
    )
    include: Annotated[list[Includable], Field(max_length=64, fail_fast=True)] | None = Field(
        default=None,
        description="message.output_text.logprobs; other values concern what never occurs here",
    )
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = Field(
        default=None, description="priority and fast go before others, flex after them"
    )
    store: bool | None = Field(
        default=None, description="false: it cannot be retrieved, and is deleted once delivered"
    )
    background: bool | None = Field(
        default=None, description="answer at once; the response continues without a client"
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: _Identifier | None = None
    safety_identifier: _Identifier | None = None
    prompt_cache_key: _Identifier | None = None
    client_metadata: dict[str, Any] | None = Field(
        default=None, description="sent by Codex; accepted, changes nothing"
    )


#: OpenAI's parameters that ask for what is not here, and the values that ask for nothing.
UNSUPPORTED: Unsupported = {
    "truncation": (
        ("disabled",),
        "only 'disabled' is supported: what does not fit into the context is refused",
    ),
    "reasoning": (
        (
            {},
            {"effort": "none"},
            {"effort": None},
            {"effort": None, "summary": None},
            {"summary": "auto"},
            {"effort": None, "summary": "auto"},
        ),
        "the models here have no reasoning to configure",
    ),
    "conversation": ((), "conversations are not stored: use previous_response_id"),
    "prompt": ((), "prompt templates are not stored: send instructions and input"),
    "context_management": (([],), "nothing compacts the context here"),
    "moderation": ((), "there is no moderation here"),
    "access_programs": (({},), "there are no access programs here"),
    "image": (({},), "the models here read no images"),
    "background_options": (
        ({}, {"completion_window": "soonest"}),
        "there are no completion windows: use deadline_s and service_tier",
    ),
    "prompt_cache_options": (
        ({}, {"mode": "implicit"}),
        "prefixes are cached by themselves, as long as there is room",
    ),
    "prompt_cache_retention": (
        ("in_memory",),
        "prefixes are cached in memory, as long as there is room",
    ),
    **OF_OTHER_SERVERS,
}
