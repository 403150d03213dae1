"""The job schema, version 1, and the chat messages in it."""

import json
import math
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rose.engine_records import Task
from rose.errors import InvalidParameter
from rose.sampling import NAMES, POSSIBLE, SamplingParams, TokenId
from rose.validation import describe, lone_surrogate

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 * 1024
"""of all tools of a job, as JSON text"""
MAX_TEMPLATE_KWARGS_BYTES = 16 * 1024
"""of all of a job, as JSON text"""
MAX_TOOL_CALLS = 128
"""of one message"""
_MAX_DEPTH = 32

_FUNCTION_NAME = r"^[A-Za-z0-9_.-]{1,128}$"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: Names that are transformers' own arguments of `apply_chat_template`, or that a job sets
#: elsewhere.
_TAKEN = frozenset(
    (
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation"),
        *("conversations", "documents", "max_length", "messages", "padding", "return_dict"),
        *("return_assistant_tokens_mask", "return_tensors", "sanitize_control_tokens", "self"),
        *("tokenize", "tokenizer_kwargs", "tools", "truncation"),
    )
)


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _refuse(reason: str) -> NoReturn:
    raise PydanticCustomError("chat", "{reason}", {"reason": reason})


def _json_object(text: str) -> str:
    try:
        # A number may be larger than a float holds: a model writes such, and its call comes back.
        value = json.loads(text, parse_float=str, parse_constant=_no_json)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        _refuse("must be the text of a JSON object")
    _check_json(value)
    return text


def _no_json(constant: str) -> NoReturn:
    """NaN and Infinity, which Python's parser takes. Raises: ValueError"""
    raise ValueError(f"{constant} is no JSON")


def _check_json(value: Any) -> None:
    """JSON values only, and not too deep: templates and serializers recurse."""
    level, depth = [value], 0
    while level:
        if depth > _MAX_DEPTH:
            _refuse(f"must not be nested more than {_MAX_DEPTH} levels deep")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                if not all(isinstance(key, str) for key in item):
                    _refuse("must be JSON: the names of fields are texts")
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
            elif isinstance(item, float):
                if not math.isfinite(item):
                    _refuse("must be JSON: a number is not finite")
            elif not isinstance(item, str | int | None):
                _refuse(f"must be JSON: it holds {type(item).__name__}")
        level, depth = below, depth + 1


class FunctionCall(_Message):
    name: str = Field(pattern=_FUNCTION_NAME)
    arguments: Annotated[str, AfterValidator(_json_object)]
    """the text of a JSON object"""


class ToolCall(_Message):
    id: str = Field(min_length=1, max_length=128)
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Message):
    """`tool_calls` are an assistant's; `tool_call_id` says which of them a tool answers."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str
    """may be empty, as where there are `tool_calls`"""
    tool_calls: tuple[ToolCall, ...] = Field(
        default=(), max_length=MAX_TOOL_CALLS, strict=False, fail_fast=True
    )
    tool_call_id: str | None = Field(default=None, min_length=1, max_length=128)
    name: str | None = Field(default=None, min_length=1, max_length=128)
    reasoning_content: str | None = None
    """an assistant's thoughts before its answer; a template that reads none leaves them out"""

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            _refuse("tool_calls are for the role assistant alone")
        if self.reasoning_content is not None and self.role != "assistant":
            _refuse("reasoning_content is for the role assistant alone")
        if self.tool_call_id is not None and self.role != "tool":
            _refuse("tool_call_id is for the role tool alone")
        return self

    @property
    def token_estimate(self) -> int:
        """Four bytes a token, and some for what stands around it."""
        size = len(self.content.encode()) + len((self.reasoning_content or "").encode())
        for call in self.tool_calls:
            size += len(call.function.name) + len(call.function.arguments.encode()) + 32
        return size // 4 + 4


def _definitions(tools: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    if not tools:
        return tools
    _check_json(tools)
    if (size := tools_size(tools)) > MAX_TOOLS_BYTES:
        _refuse(f"must be at most {MAX_TOOLS_BYTES} bytes as JSON (they are {size})")
    for number, tool in enumerate(tools):
        try:
            _Definition.model_validate(tool)
        except ValidationError as error:
            _refuse(f"{number}.{describe(error, whole='tool')}")
    return tools


def _template_kwargs(given: dict[str, Any]) -> dict[str, Any]:
    if not given:
        return given
    _check_json(given)
    if (size := len(json.dumps(given).encode())) > MAX_TEMPLATE_KWARGS_BYTES:
        _refuse(f"must be at most {MAX_TEMPLATE_KWARGS_BYTES} bytes as JSON (they are {size})")
    for name in given:
        if not _VARIABLE.fullmatch(name):
            _refuse(f"{name[:80]!r} can be no variable of a template")
        if name in _TAKEN:
            _refuse(f"{name!r} is no variable that a chat template may be given")
    return given


def tools_size(tools: tuple[dict[str, Any], ...]) -> int:
    """Bytes of the tools as JSON text."""
    return len(json.dumps(tools, ensure_ascii=False).encode(errors="replace"))


class _DefinedFunction(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    name: str = Field(pattern=_FUNCTION_NAME)
    description: str = ""
    parameters: dict[str, Any] = {}


class _Definition(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    type: Literal["function"]
    function: _DefinedFunction


Tools = Annotated[
    tuple[dict[str, Any], ...],
    Field(max_length=MAX_TOOLS, strict=False, fail_fast=True),
    AfterValidator(_definitions),
]
"""Definitions of functions: `{"type": "function", "function": {"name": ..., ...}}`."""

TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_template_kwargs)]
"""Variables of the chat template beside messages and tools: `{"enable_thinking": False}`."""


JOB_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$"

ADAPTER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"

TRACEPARENT_PATTERN = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"

#: Of what a caller gives: the tenant and the owner come before it in a job's.
MAX_CACHE_SALT = 256

#: Of a job whose answer is numbers.
MAX_INPUTS = 2048
MAX_DIMENSIONS = 65_536

_POSSIBLE = POSSIBLE | {"prompt": "non-empty text, chat messages (role, content), or token ids"}
_POSSIBLE_INPUTS = POSSIBLE | {
    "prompt": f"non-empty text, token ids, or up to {MAX_INPUTS} of these"
}


class Priority(StrEnum):
    """Declared most urgent first: intake reads the streams in this order."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def level(self) -> int:
        """1 for the most urgent."""
        return _LEVELS[self]


_LEVELS = {priority: level for level, priority in enumerate(Priority, 1)}


_Messages = Annotated[tuple[ChatMessage, ...], Field(strict=False, fail_fast=True)]
_MESSAGES: TypeAdapter[tuple[ChatMessage, ...]] = TypeAdapter(_Messages)
_Text = Annotated[str, Field(min_length=1)]
_TokenIds = Annotated[tuple[TokenId, ...], Field(min_length=1, strict=False, fail_fast=True)]
Input = _Text | _TokenIds
Prompt = (
    _Text
    | Annotated[_Messages, Field(min_length=1)]
    | _TokenIds
    | Annotated[
        tuple[Input, ...],
        Field(min_length=1, max_length=MAX_INPUTS, strict=False, fail_fast=True),
    ]
)


class EncodeOptions(_Message):
    """Of a job whose answer is numbers: a row for each input, in its one event."""

    task: Literal["embed", "score"] = "embed"
    dimensions: int | None = Field(default=None, ge=1, le=MAX_DIMENSIONS)
    """embed: the first ones of each vector, for a model that is trained for it"""
    prompt_name: str | None = Field(default=None, max_length=128)
    """embed: which of the model's prompts each text begins with, such as "query"; "" for none;
    None: the one that the model's files say"""
    input_type: Literal["query", "document", "classification", "clustering"] | None = None
    """embed: what the texts are for: the model's prompt for it, if it has one and no `prompt_name`
    is given"""
    truncate: bool = False
    """An input that is too long is cut, where it is refused otherwise."""
    queries: tuple[_Text, ...] = Field(
        default=(), max_length=MAX_INPUTS, strict=False, fail_fast=True
    )
    """score: what the inputs are scored with: one for all of them, or one for each"""

    @model_validator(mode="after")
    def _fields_fit_the_task(self) -> Self:
        of_embed = (self.dimensions, self.prompt_name, self.input_type)
        if self.task == "score" and any(value is not None for value in of_embed):
            _refuse("dimensions, prompt_name and input_type are for the task embed alone")
        if (self.task == "score") != bool(self.queries):
            _refuse("queries are for the task score alone, which needs at least one")
        return self


class JobSpec(BaseModel):
    """One prompt job. `prompt` is text, chat messages, or token ids, and with `encode` also several
    texts or lists of token ids."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    v: Literal[1] = 1
    id: str = Field(pattern=JOB_ID_PATTERN)
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    deadline_ms: int | None = Field(default=None, ge=0)
    """Deadline: Unix time in milliseconds."""
    metadata: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    traceparent: str | None = Field(default=None, pattern=TRACEPARENT_PATTERN)
    """W3C trace context of whoever submitted it; left out without tracing."""
    tools: Tools = ()
    """The tools that the chat template offers to the model."""
    adapter: str | None = Field(default=None, pattern=ADAPTER_PATTERN)
    """The LoRA adapter that answers; None for the model itself."""
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    """What the chat template is told beside."""
    cache_salt: str = Field(default="", max_length=MAX_CACHE_SALT + 256)
    """Jobs of the same salt share cached prefixes, others do not."""
    prompt_only: Literal["count", "ids"] | None = None
    """Generate nothing: the end says how many tokens the prompt has, and which."""
    continue_final_message: bool = False
    """The last message is the assistant's, and what is generated continues it."""
    encode: EncodeOptions | None = None
    """Generate nothing: the end has the inputs' numbers."""

    @model_validator(mode="after")
    def _templates_are_for_a_chat(self) -> Self:
        if self.tools and not self.messages:
            raise PydanticCustomError("tools", "tools are only for a prompt of chat messages")
        if self.chat_template_kwargs and not self.messages:
            raise PydanticCustomError(
                "template", "chat_template_kwargs are only for a prompt of chat messages"
            )
        if self.continue_final_message and not self._ends_open:
            raise PydanticCustomError(
                "continue",
                "continue_final_message needs chat messages that end with a text of the assistant",
            )
        return self

    @model_validator(mode="after")
    def _inputs_are_for_an_encoder(self) -> Self:
        if self.encode is None:
            if not isinstance(self.prompt[0], str | int | ChatMessage) or self._has_texts:
                _refuse("a prompt of several texts is only for a job with `encode`")
            return self
        if self.messages or self.prompt_only or self.adapter:
            _refuse("a job with `encode` has no chat messages, no prompt_only and no adapter")
        if len(self.encode.queries) not in (0, 1, len(self.inputs)):
            _refuse(
                f"encode.queries: there are {len(self.encode.queries)} for {len(self.inputs)} "
                "inputs: give one for all of them, or one for each"
            )
        if self.encode.queries and not all(isinstance(text, str) for text in self.inputs):
            _refuse("a job with encode.queries has texts, no token ids")
        return self

    @property
    def _has_texts(self) -> bool:
        return not isinstance(self.prompt, str) and isinstance(self.prompt[0], str)

    @property
    def task(self) -> Task:
        return "generate" if self.encode is None else self.encode.task

    @property
    def inputs(self) -> tuple[str | tuple[int, ...], ...]:
        """Of a job with `encode`: each is a text or token ids."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        if isinstance(self.prompt[0], int):
            return (self.token_ids,)
        return tuple(one for one in self.prompt if isinstance(one, str | tuple))

    @property
    def _ends_open(self) -> bool:
        last = self.messages[-1] if self.messages else None
        return bool(last and last.role == "assistant" and last.content and not last.tool_calls)

    @property
    def token_estimate(self) -> int:
        """Estimated cost in tokens: exact for ids, else four bytes a token."""
        return self.prompt_estimate + (self.sampling.max_new_tokens if self.encode is None else 0)

    @property
    def prompt_estimate(self) -> int:
        """The prompt's part of it."""
        if isinstance(self.prompt, str):
            return len(self.prompt.encode()) // 4 + 1
        if isinstance(self.prompt[0], ChatMessage):
            messages = sum(message.token_estimate for message in self.messages)
            return messages + (tools_size(self.tools) // 4 if self.tools else 0)
        if isinstance(self.prompt[0], int):
            return len(self.prompt)
        return sum(
            len(one) if isinstance(one, tuple) else len(one.encode()) // 4 + 1
            for one in self.inputs
        ) + sum(
            len(query.encode()) // 4 + 1 for query in (self.encode.queries if self.encode else ())
        )

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """The chat messages of the prompt; empty for text and ids."""
        if isinstance(self.prompt, str):
            return ()
        return tuple(m for m in self.prompt if isinstance(m, ChatMessage))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids of the prompt; empty for text and chat."""
        if isinstance(self.prompt, str):
            return ()
        return tuple(t for t in self.prompt if isinstance(t, int))


def new_job_id(partition: int) -> str:
    """An id that nobody has, and that says where its keys are."""
    return f"{partition}-{os.urandom(16).hex()}"


def job_from(fields: Mapping[str, Any]) -> JobSpec:
    """Raises: InvalidParameter: names every wrong field in one line; never quotes prompt text."""
    try:
        return JobSpec.model_validate(fields)
    except ValidationError as error:
        # A client's caller may also have meant an argument that is no part of the job.
        known = (*NAMES, *JobSpec.model_fields, "priority", "job_id", "idempotency_key")
        possible = _POSSIBLE if fields.get("encode") is None else _POSSIBLE_INPUTS
        message = describe(error, whole="job", inner="sampling", possible=possible, known=known)
        raise InvalidParameter(message + _wrong_in_prompt(fields.get("prompt"))) from None


def _wrong_in_prompt(prompt: Any) -> str:
    """What is wrong with a prompt that can only be text, or a chat, to be added to a report."""
    if isinstance(prompt, str) and (where := lone_surrogate(prompt)) is not None:
        return f": {where}"
    is_chat = isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], Mapping)
    try:
        if is_chat:
            _MESSAGES.validate_python(prompt)
    except ValidationError as error:
        return f": {describe(error, whole='prompt')}"
    return ""
