"""Chat messages, the tool calls in them, the tools that a model may call, and further variables
of its chat template."""

import json
import math
import re
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from rose.validation import describe

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

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            _refuse("tool_calls are for the role assistant alone")
        if self.tool_call_id is not None and self.role != "tool":
            _refuse("tool_call_id is for the role tool alone")
        return self

    @property
    def token_estimate(self) -> int:
        """Four bytes a token, and some for what stands around it."""
        size = len(self.content.encode())
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
