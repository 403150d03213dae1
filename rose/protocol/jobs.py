"""What a producer asks for: the job schema, version 1."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Literal, LiteralString, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rose.errors import InvalidParameter

JOB_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$"

TRACEPARENT_PATTERN = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
T = TypeVar("T")

#: Of a JSON schema, a regular expression or a grammar: what a worker compiles is bounded first.
MAX_GRAMMAR_BYTES = 64 * 1024
MAX_TOP_LOGPROBS = 20

# A report travels in error events: its length must not be the sender's to choose.
_MOST_LINES = 8
_LONGEST_NAME = 64


class Priority(StrEnum):
    """Declared most urgent first: intake reads the streams in this order."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class _Message(BaseModel):
    # strict: "0.7" is not a temperature and 1.0 is not a count. The producer's own mistakes
    # surface where they are made rather than as odd output.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ChatMessage(_Message):
    role: Literal["system", "user", "assistant"]
    content: str


def _bounded(text: str) -> str:
    size = len(text.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise PydanticCustomError("too_long", f"has {size} bytes, the limit is {MAX_GRAMMAR_BYTES}")
    return text


def _json(text: str) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PydanticCustomError("no_json", f"is no JSON text: {type(error).__name__}") from None
    return text


GrammarText = Annotated[str, Field(min_length=1), AfterValidator(_bounded)]
Bias = tuple[TokenId, Annotated[float, Field(ge=-100.0, le=100.0)]]


class Sampling(_Message):
    """How tokens are chosen. `temperature=0` is greedy; a seed makes sampling repeatable.

    Without a seed the worker derives one from the job id, so that a job that moves to another
    worker goes on with the same random numbers.

    Logits go through repetition penalty (prompt and output), frequency and presence penalty
    (output), `logit_bias` and the grammar before temperature and filters. `logprobs` are of the
    logits before all of that. At most one of `json_schema` (JSON text), `regex` and `grammar`
    (Lark) says what the text must be.
    """

    max_new_tokens: int = Field(default=256, ge=1, le=1_000_000)
    temperature: float = Field(default=0.0, ge=0.0, le=100.0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, lt=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    # fail_fast, here and below: a million wrong items are one mistake, not a million reports,
    # which would take gigabytes.
    stop: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        default=(), max_length=16, strict=False, fail_fast=True
    )
    stop_token_ids: tuple[TokenId, ...] = Field(
        default=(), max_length=64, strict=False, fail_fast=True
    )
    ignore_eos: bool = False
    min_new_tokens: int = Field(default=0, ge=0, le=1_000_000)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=100.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    logit_bias: tuple[Annotated[Bias, Field(strict=False)], ...] = Field(
        default=(), max_length=1024, strict=False, fail_fast=True
    )
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    json_schema: Annotated[GrammarText, AfterValidator(_json)] | None = None
    regex: GrammarText | None = None
    grammar: GrammarText | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if problem := next(self._contradictions(), None):
            raise PydanticCustomError("contradiction", problem)
        return self

    def _contradictions(self) -> Iterator[LiteralString]:
        if self.min_new_tokens > self.max_new_tokens:
            yield "min_new_tokens is more than max_new_tokens"
        if self.top_logprobs and not self.logprobs:
            yield "top_logprobs needs logprobs"
        bias = self.logit_bias
        if bias and len({token_id for token_id, _ in bias}) < len(bias):
            yield "logit_bias names a token id twice"
        given = (self.json_schema, self.regex, self.grammar)
        if given.count(None) < 2:
            yield "only one of json_schema, regex and grammar can be given"
        if self.has_grammar and self.ignore_eos:
            yield "ignore_eos cannot go with json_schema, regex or grammar: eos may end these"

    @property
    def has_grammar(self) -> bool:
        """The text must fit a schema, a regular expression or a grammar."""
        return not (self.json_schema is None and self.regex is None and self.grammar is None)


Prompt = (
    Annotated[str, Field(min_length=1)]
    | Annotated[tuple[ChatMessage, ...], Field(min_length=1, strict=False, fail_fast=True)]
    | Annotated[tuple[TokenId, ...], Field(min_length=1, strict=False, fail_fast=True)]
)


class JobSpec(_Message):
    """One prompt job. `prompt` is text, chat messages, or token ids."""

    v: Literal[1] = 1
    id: str = Field(pattern=JOB_ID_PATTERN)
    prompt: Prompt
    sampling: Sampling = Sampling()
    deadline_ms: int | None = Field(default=None, ge=0)
    """Unix time in milliseconds after which nobody wants the answer any more."""
    metadata: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    traceparent: str | None = Field(default=None, pattern=TRACEPARENT_PATTERN)
    """W3C trace context of whoever submitted it; left out where nobody traces."""

    @property
    def token_estimate(self) -> int:
        """What the job may cost, in tokens: exact for ids, else four bytes a token."""
        if isinstance(self.prompt, str):
            prompt = len(self.prompt.encode()) // 4 + 1
        elif isinstance(self.prompt[0], ChatMessage):
            prompt = sum(len(m.content.encode()) // 4 + 4 for m in self.messages)
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


def validated(build: Callable[[], T]) -> T:
    """Run `build`, turning pydantic's report into one line.

    Raises:
        InvalidParameter: names every wrong field; never quotes prompt text.
    """
    try:
        return build()
    except ValidationError as error:
        raise InvalidParameter(describe(error)) from None


def describe(error: ValidationError) -> str:
    """One line for a validation report, for people and for error events."""
    lines: dict[str, None] = {}
    for item in error.errors(include_url=False, include_context=False):
        # The union branches of `prompt` report one error each; the first part says enough.
        parts = item["loc"][item["loc"][:1] == ("sampling",) :]  # its fields are known by name
        where = ".".join(str(part)[:_LONGEST_NAME] for part in parts)
        if where.startswith("prompt"):
            where = "prompt"
        value = item["input"]
        shown = f" (got {value!r})" if isinstance(value, int | float | bool | None) else ""
        line = f"{where or 'job'}: {item['msg']}{shown}"
        if item["type"] == "extra_forbidden":
            line = f"{where}: no such parameter"
        if where == "prompt":
            line = "prompt: must be non-empty text, chat messages (role, content), or token ids"
        lines[line] = None
    told = list(lines)[:_MOST_LINES]
    left = len(lines) - len(told)
    return "; ".join(told) + (f"; and {left} more" if left else "")
