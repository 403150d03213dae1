"""What a request may say, as OpenAI names it. Whatever this server cannot honour is refused."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

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
from rose_gateway.requests.thinking import ThinkingRequest
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
    namespace: _CalledName | None = None
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


class CustomToolCall(ReturnedModel):
    type: Literal["custom_tool_call"]
    call_id: _CallId
    name: _CalledName
    namespace: _CalledName | None = None
    input: str
    id: _ItemId | None = None
    status: _Status | None = None


class CustomToolCallOutput(ReturnedModel):
    type: Literal["custom_tool_call_output"]
    call_id: _CallId
    output: Content
    id: _ItemId | None = None
    status: _Status | None = None


class LocalShellAction(ReturnedModel):
    type: Literal["exec"] = "exec"
    command: Annotated[list[str], Field(max_length=MAX_ITEMS, fail_fast=True)]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCall(ReturnedModel):
    type: Literal["local_shell_call"]
    action: LocalShellAction
    call_id: _CallId | None = Field(default=None, description="by default the id")
    id: _ItemId | None = None
    status: _Status | None = None


class LocalShellCallOutput(ReturnedModel):
    type: Literal["local_shell_call_output"]
    output: str
    call_id: _CallId | None = Field(default=None, description="by default the id")
    id: _ItemId | None = None
    status: _Status | None = None


class ShellAction(ReturnedModel):
    commands: Annotated[list[str], Field(max_length=MAX_ITEMS, fail_fast=True)]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCall(ReturnedModel):
    type: Literal["shell_call"]
    action: ShellAction
    call_id: _CallId
    id: _ItemId | None = None
    status: _Status | None = None


class ShellOutput(ReturnedModel):
    stdout: str = ""
    stderr: str = ""
    outcome: dict[str, Any] | None = None


class ShellCallOutput(ReturnedModel):
    type: Literal["shell_call_output"]
    output: Annotated[list[ShellOutput], Field(max_length=MAX_ITEMS, fail_fast=True)]
    call_id: _CallId
    id: _ItemId | None = None
    status: _Status | None = None


class PatchOperation(ReturnedModel):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str = ""


class ApplyPatchCall(ReturnedModel):
    type: Literal["apply_patch_call"]
    operation: PatchOperation
    call_id: _CallId
    id: _ItemId | None = None
    status: _Status | None = None


class ApplyPatchCallOutput(ReturnedModel):
    type: Literal["apply_patch_call_output"]
    call_id: _CallId
    output: str | None = None
    id: _ItemId | None = None
    status: Literal["completed", "failed"] = "completed"


class CompactionItem(ReturnedModel):
    """What `POST /v1/responses/compact` has made of a conversation."""

    type: Literal["compaction"]
    encrypted_content: str
    id: _ItemId | None = None


class HostedCall(ReturnedModel):
    """What a tool of another server's did. It stays in the conversation; no model reads it."""

    type: Literal[
        "web_search_call",
        "file_search_call",
        "image_generation_call",
        "code_interpreter_call",
        "tool_search_call",
        "tool_search_output",
        "mcp_list_tools",
    ]
    id: _ItemId | None = None
    status: str | None = None


class ReasoningItem(ReturnedModel):
    """Models that think read it: what is sealed in it, else its content, else its summary."""

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


_HOSTED_CALLS = frozenset(get_args(HostedCall.model_fields["type"].annotation))


def _kind(item: Any) -> str:
    """Messages and references may come without a type."""
    fields = item if isinstance(item, dict) else vars(item) if isinstance(item, BaseModel) else {}
    kind = fields.get("type")
    if kind is None:
        kind = "message" if "role" in fields else "item_reference"
    if not isinstance(kind, str):
        return ""
    if kind == "message" and fields.get("role") == "assistant":
        return "assistant"
    if kind in _HOSTED_CALLS:
        return "hosted"
    return kind


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[OutputMessage, Tag("assistant")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[CustomToolCall, Tag("custom_tool_call")]
    | Annotated[CustomToolCallOutput, Tag("custom_tool_call_output")]
    | Annotated[LocalShellCall, Tag("local_shell_call")]
    | Annotated[LocalShellCallOutput, Tag("local_shell_call_output")]
    | Annotated[ShellCall, Tag("shell_call")]
    | Annotated[ShellCallOutput, Tag("shell_call_output")]
    | Annotated[ApplyPatchCall, Tag("apply_patch_call")]
    | Annotated[ApplyPatchCallOutput, Tag("apply_patch_call_output")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[HostedCall, Tag("hosted")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(
        _kind,
        custom_error_type="unsupported_item",
        custom_error_message="items of this type are not supported: send messages, reasoning, "
        "item_reference, and calls of functions, custom tools, shells and apply_patch with their "
        "outputs",
    ),
]


class _ToolOptions(RequestModel):
    """What OpenAI's tools may have beside, and changes nothing here."""

    allowed_callers: list[Literal["direct", "programmatic"]] | None = None
    async_: bool | None = Field(default=None, alias="async")
    defer_loading: bool | None = None


class _Function(RequestModel):
    """The last base, as its field is then looked at first: whoever asks for a tool of another type
    is told of the type, and not of the name that is missing."""

    type: Literal["function"]


class FunctionTool(FunctionDefinition, _ToolOptions, _Function):
    output_schema: dict[str, Any] | None = None


class TextInputFormat(RequestModel):
    type: Literal["text"]


class GrammarFormat(RequestModel):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class CustomTool(_ToolOptions):
    type: Literal["custom"]
    name: str
    description: str | None = None
    format: Annotated[TextInputFormat | GrammarFormat, Field(discriminator="type")] | None = None


class NamespaceTool(RequestModel):
    """Functions and custom tools whose names are of one family."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Annotated[
        list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ]


class _OpenModel(RequestModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        return given


class BuiltInTool(_OpenModel):
    """A tool that OpenAI defines and the client runs."""

    type: Literal["local_shell", "shell", "apply_patch"]


class HostedTool(_OpenModel):
    """A tool that OpenAI runs, and nobody here: the model is not told of it."""

    type: Literal[
        "web_search",
        "web_search_preview",
        "web_search_2025_08_26",
        "web_search_preview_2025_03_11",
        "file_search",
        "image_generation",
        "code_interpreter",
        "tool_search",
        "mcp",
    ]


Tool = Annotated[
    FunctionTool | CustomTool | NamespaceTool | BuiltInTool | HostedTool,
    Field(discriminator="type"),
]


class FunctionChoice(NamedFunction, _Function):
    namespace: str | None = None


class CustomChoice(RequestModel):
    type: Literal["custom"]
    name: str
    namespace: str | None = None


class BuiltInChoice(RequestModel):
    type: Literal["local_shell", "shell", "apply_patch"]


NamedTool = Annotated[FunctionChoice | CustomChoice | BuiltInChoice, Field(discriminator="type")]


class AllowedTools(RequestModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[
        FunctionChoice | CustomChoice | BuiltInChoice | AllowedTools, Field(discriminator="type")
    ]
)


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
SEALED: Includable = "reasoning.encrypted_content"


class CreateResponse(ThinkingRequest, DetailedSamplingRequest):
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
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        default=None,
        description="function, custom, namespace, local_shell, shell, apply_patch; those that "
        "OpenAI runs, such as web_search, are left out",
    )
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
        description="message.output_text.logprobs; reasoning.encrypted_content: thoughts are "
        "also sealed, to be sent back; other values concern what never occurs here",
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
    prompt_cache_key: _Identifier | None = Field(
        default=None, description="a hint: [placement](operations.md#placement)"
    )
    client_metadata: dict[str, Any] | None = Field(
        default=None, description="sent by Codex; accepted, changes nothing"
    )


#: OpenAI's parameters that ask for what is not here, and the values that ask for nothing.
UNSUPPORTED: Unsupported = {
    "truncation": (
        ("disabled",),
        "only 'disabled' is supported: what does not fit into the context is refused",
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
