"""What a request for a message may say, as Anthropic names it, and what it is answered with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from rose.errors import MalformedMessage
from rose_gateway.answers.endpoint import ServiceTier
from rose_gateway.jobs.job_group import fields_of
from rose_gateway.requests.conversation import CacheControl
from rose_gateway.requests.other_servers import OF_OTHER_SERVERS
from rose_gateway.requests.parsing import Unsupported
from rose_gateway.requests.sampling import DetailedSamplingRequest, RequestModel, ReturnedModel
from rose_gateway.requests.thinking import EffortConfig, ThinkingRequest
from rose_gateway.requests.warnings import ShownWarning
from rose_gateway.tools.tools import MAX_TOOLS, CallForm

_MAX_ITEMS = 4096

_CallId = Annotated[str, Field(min_length=1, max_length=128)]
_StopSequence = Annotated[str, Field(min_length=1, max_length=256)]


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str
    cache_control: CacheControl = None
    citations: Annotated[list[Any], Field(max_length=_MAX_ITEMS, fail_fast=True)] | None = None


class ToolResultBlock(RequestModel):
    type: Literal["tool_result"]
    tool_use_id: _CallId
    content: "str | list[_ResultPart] | None" = Field(
        default=None, max_length=None, description="a text, or text blocks"
    )
    is_error: bool | None = None
    cache_control: CacheControl = None
    toolset_name: None = None


class GivenTextBlock(ReturnedModel):
    type: Literal["text"]
    text: str


class ToolUseBlock(ReturnedModel):
    type: Literal["tool_use"]
    id: _CallId
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    input: dict[str, Any]


class ThinkingBlock(ReturnedModel):
    """The signature has the thought in it. Without one it is taken as it is."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(ReturnedModel):
    """No model here can read it: it is left out."""

    type: Literal["redacted_thinking"]
    data: str = ""


def _known_block(*kinds: str) -> BeforeValidator:
    """Refuses a block of another type by its name."""

    def check(given: Any) -> Any:
        kind = given.get("type") if isinstance(given, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            raise PydanticCustomError(
                "unsupported_block",
                "blocks of the type {kind} are not supported here, this server's models read text "
                "alone: send {kinds}",
                {"kind": repr(kind[:64]), "kinds": " or ".join(kinds)},
            )
        return given

    return BeforeValidator(check)


_ResultPart = Annotated[TextBlock, _known_block("text")]

_SystemBlock = Annotated[TextBlock, _known_block("text")]
_SystemBlocks = Annotated[list[_SystemBlock], Field(max_length=_MAX_ITEMS, fail_fast=True)]

_UserBlock = Annotated[
    Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")],
    _known_block("text", "tool_result"),
]
_AssistantBlock = Annotated[
    Annotated[
        GivenTextBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock,
        Field(discriminator="type"),
    ],
    _known_block("text", "tool_use", "thinking", "redacted_thinking"),
]


class UserMessage(RequestModel):
    role: Literal["user"]
    content: str | Annotated[list[_UserBlock], Field(max_length=_MAX_ITEMS, fail_fast=True)]


class AssistantMessage(ReturnedModel):
    role: Literal["assistant"]
    content: str | Annotated[list[_AssistantBlock], Field(max_length=_MAX_ITEMS, fail_fast=True)]


class SystemMessage(RequestModel):
    role: Literal["system"]
    content: str | _SystemBlocks
    output_config: EffortConfig | None = Field(
        default=None, description="Claude Code's: effort from this turn on"
    )


Message = Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]


class Tool(RequestModel):
    """A function of the client's own."""

    name: str
    input_schema: dict[str, Any] = Field(description="JSON schema of the input")
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = Field(
        default=None,
        description="true refuses what a grammar cannot follow of the schema, such as uniqueItems",
    )
    cache_control: CacheControl = None
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = Field(default=None, max_length=1)
    input_examples: (
        Annotated[list[dict[str, Any]], Field(max_length=_MAX_ITEMS, fail_fast=True)] | None
    ) = Field(default=None, description="accepted; the model is not shown them")

    @model_validator(mode="before")
    @classmethod
    def _is_a_function(cls, given: Any) -> Any:
        kind = given.get("type") if isinstance(given, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise PydanticCustomError(
                "unsupported_tool",
                "{kind} is a tool that Anthropic's models or servers know, and nothing here: "
                "define a tool of your own with an input_schema",
                {"kind": repr(kind[:64])},
            )
        return given


class _Choice(RequestModel):
    disable_parallel_tool_use: bool | None = Field(
        default=None, description="true ends the answer after one call"
    )


class AutoChoice(_Choice):
    type: Literal["auto"]


class AnyChoice(_Choice):
    type: Literal["any"]


class ToolChoice(_Choice):
    type: Literal["tool"]
    name: str


class NoneChoice(RequestModel):
    type: Literal["none"]


Choice = Annotated[AutoChoice | AnyChoice | ToolChoice | NoneChoice, Field(discriminator="type")]


class JsonOutputFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(EffortConfig):
    format: JsonOutputFormat | None = None


class RequestMetadata(RequestModel):
    user_id: Annotated[str, Field(max_length=512)] | None = None


class PromptRequest(ThinkingRequest):
    """What makes the prompt."""

    hides_thoughts: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Field(min_length=1, max_length=_MAX_ITEMS, fail_fast=True)]
    system: str | _SystemBlocks | None = Field(
        default=None,
        description="a text, or text blocks; a line `x-anthropic-billing-header: ...` is left out, "
        "which changes with each request of Claude Code",
    )
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Choice | None = None
    output_config: OutputConfig | None = Field(
        default=None, description="effort; `format`: the text is JSON of a schema"
    )
    cache_control: CacheControl = None

    def efforts(self) -> Iterator[tuple[str, str | None]]:
        yield from super().efforts()
        for number, message in enumerate(self.messages):
            if isinstance(message, SystemMessage) and message.output_config is not None:
                yield f"messages[{number}].output_config.effort", message.output_config.effort


class CreateMessage(PromptRequest, DetailedSamplingRequest):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)]
    stop_sequences: Annotated[list[_StopSequence], Field(max_length=16, fail_fast=True)] | None = (
        Field(default=None, description="texts that end the output and are cut from it")
    )
    stop: None = Field(default=None, description="use stop_sequences")
    stream: bool | None = None
    metadata: RequestMetadata | None = Field(default=None, description="accepted")
    service_tier: ServiceTier | Literal["standard_only"] | None = Field(
        default=None,
        description="the queue's priority: flex is low, auto, default and standard_only are "
        "normal, priority, fast and scale are high",
    )


class CountTokens(PromptRequest):
    """The body of `POST /v1/messages/count_tokens`."""


#: Null asks for nothing anywhere; beside it the values that do. And why others are refused.
UNSUPPORTED: Unsupported = {
    "compaction": ((), "nothing compacts a conversation here"),
    "container": ((), "nothing is run here: there are no containers"),
    "context_management": (
        ({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},),
        "nothing edits the context here: leave out of the messages what the model is not to read",
    ),
    "fallbacks": (([],), "another model is not asked: send the request again"),
    "inference_geo": (("global",), "the workers are where they are"),
    "mcp_servers": (([],), "this server calls no other: call tools in your client"),
    "output_format": ((), "use output_config.format"),
    "speed": (("standard",), "use service_tier"),
    "stop": ((), "use stop_sequences"),
    "thread": ((), "conversations are not stored: send all messages"),
    **OF_OTHER_SERVERS,
}

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class ContentBlock(BaseModel):
    type: Literal["text", "thinking", "tool_use"]
    text: str = Field(default="", description="of a text block")
    thinking: str = Field(default="", description="of a thinking block")
    signature: str = Field(default="", description="of a thinking block")
    id: str = Field(default="", description="of a tool_use block")
    name: str = Field(default="", description="of a tool_use block")
    input: dict[str, Any] = Field(default={}, description="of a tool_use block")


class OutputTokensDetails(BaseModel):
    thinking_tokens: int


class MessageUsage(BaseModel):
    input_tokens: int
    """of the prompt, without those that were cached"""
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    """of the prompt, found in the worker's prefix cache"""
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    service_tier: Literal["standard", "priority", "batch"]


class MessageAnswer(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason
    stop_sequence: str | None
    usage: MessageUsage
    warnings: list[ShownWarning] | None = None


class TokenCount(BaseModel):
    input_tokens: int


@dataclass(frozen=True, slots=True)
class MessageParameters:
    """All that the answer depends on beside the log."""

    model: str
    """as the request named it"""
    form: CallForm = field(default_factory=CallForm)
    stop_sequences: tuple[str, ...] = ()
    stream: bool = False
    tier: str = "standard"
    grammar: str = ""
    """what the request calls the grammar of its text"""
    sealed_for: str = ""
    """for whom thoughts are signed"""
    omits_thoughts: bool = False
    """their text is shown in their signatures alone"""

    def as_record(self) -> dict[str, Any]:
        """JSON values for `Record.request`."""
        return fields_of(self) | {"form": self.form.as_record()}

    @classmethod
    def from_record(cls, request: Mapping[str, Any]) -> "MessageParameters":
        """Raises: MalformedMessage: `as_record` has not written it."""
        try:
            more = {
                "form": CallForm.from_record(request["form"]),
                "stop_sequences": tuple(request["stop_sequences"]),
            }
            return cls(**{**request, **more})
        except (KeyError, TypeError, ValueError):
            raise MalformedMessage("the job's record is not that of a message") from None
