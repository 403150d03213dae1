"""The job schema, version 1."""

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from rose.errors import InvalidParameter
from rose.protocol.chat import ChatMessage, TemplateKwargs, Tools, tools_size
from rose.sampling import POSSIBLE, SamplingParams, TokenId
from rose.validation import describe, lone_surrogate

JOB_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$"

ADAPTER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"

TRACEPARENT_PATTERN = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"

#: Of what a caller gives: the tenant and the owner come before it in a job's.
MAX_CACHE_SALT = 256

_POSSIBLE = POSSIBLE | {"prompt": "non-empty text, chat messages (role, content), or token ids"}


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
Prompt = (
    Annotated[str, Field(min_length=1)]
    | Annotated[_Messages, Field(min_length=1)]
    | Annotated[tuple[TokenId, ...], Field(min_length=1, strict=False, fail_fast=True)]
)


class JobSpec(BaseModel):
    """One prompt job. `prompt` is text, chat messages, or token ids."""

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

    @model_validator(mode="after")
    def _templates_are_for_a_chat(self) -> Self:
        if self.tools and not self.messages:
            raise PydanticCustomError("tools", "tools are only for a prompt of chat messages")
        if self.chat_template_kwargs and not self.messages:
            raise PydanticCustomError(
                "template", "chat_template_kwargs are only for a prompt of chat messages"
            )
        return self

    @property
    def token_estimate(self) -> int:
        """Estimated cost in tokens: exact for ids, else four bytes a token."""
        if isinstance(self.prompt, str):
            prompt = len(self.prompt.encode()) // 4 + 1
        elif isinstance(self.prompt[0], ChatMessage):
            prompt = sum(message.token_estimate for message in self.messages)
            prompt += tools_size(self.tools) // 4 if self.tools else 0
        else:
            prompt = len(self.prompt)
        return prompt + self.sampling.max_new_tokens

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
        message = describe(error, whole="job", inner="sampling", possible=_POSSIBLE)
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
