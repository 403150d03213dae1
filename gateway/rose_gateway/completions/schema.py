"""A completion: its request and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rose.errors import MalformedMessage
from rose_gateway.answers.endpoint import (
    MAX_CHOICES,
    ServiceTier,
    StreamOptions,
)
from rose_gateway.answers.rendering import Usage
from rose_gateway.jobs.job_group import fields_of
from rose_gateway.requests.other_servers import OF_OTHER_SERVERS
from rose_gateway.requests.parsing import Unsupported
from rose_gateway.requests.sampling import DetailedSamplingRequest, ResponseFormat
from rose_gateway.requests.warnings import ShownWarning

#: OpenAI's, where a request does not say it.
DEFAULT_MAX_TOKENS = 16

MAX_PROMPTS = 64

_TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1, fail_fast=True)
]
_Text = Annotated[str, Field(min_length=1)]


class CompletionRequest(DetailedSamplingRequest):
    """Text to go on with. Null means that a field is not given."""

    model: Annotated[str, Field(min_length=1, description="a name of GET /v1/models")]
    prompt: (
        _Text
        | Annotated[list[_Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | _TokenIds
        | Annotated[list[_TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    ) = Field(description="a text or its token ids, or several of one kind")
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | Literal[-1] | None = Field(
        default=None,
        description=f"maximum number of tokens; {DEFAULT_MAX_TOKENS} by default, with -1 "
        "what the context holds. With 0 `echo` returns the prompt alone",
    )
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        default=None, description="answers to each prompt"
    )
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        default=None, description="accepted if equal to n"
    )
    echo: bool | None = Field(default=None, description="text and `logprobs` start with the prompt")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        default=None, description="return log-probabilities: each token's, and this many others"
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = Field(
        default=None, description="as for chat completions"
    )
    service_tier: ServiceTier | None = Field(default=None, description="as for chat completions")
    store: bool | None = Field(
        default=None, description="false deletes the job once it is delivered"
    )
    user: str | None = Field(default=None, description="accepted, changes nothing")


_OF_CHATS = "a completion has no chat template: send messages to /v1/chat/completions"

UNSUPPORTED: Unsupported = {
    "suffix": (("",), "this server's models write on, they do not fill gaps"),
    "chat_template_kwargs": ((), _OF_CHATS),
    "enable_thinking": ((), _OF_CHATS),
    "reasoning_effort": (("none",), _OF_CHATS),
    **OF_OTHER_SERVERS,
}


class LogprobsAnswer(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    """null for the first token of a prompt, which none precedes"""
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: LogprobsAnswer | None
    finish_reason: Literal["stop", "length"]


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str | None = None
    warnings: list[ShownWarning] | None = None


@dataclass(frozen=True, slots=True)
class CompletionParameters:
    """All that the answer depends on beside the log."""

    choices_of_a_prompt: int = 1
    echoes: tuple[str, ...] = ()
    """of each prompt, what its texts begin with"""
    logprobs: int | None = None
    writes: bool = True
    """false: `max_tokens` is 0. The job generates a token all the same, which nobody is shown"""
    include_usage: bool = False
    stream: bool = False
    vocabulary: str = ""
    """the key of the vocabulary that names the tokens"""
    grammar: str = ""
    """what the request calls the grammar of its text"""

    def echo(self, choice: int) -> str:
        return self.echoes[choice // self.choices_of_a_prompt] if self.echoes else ""

    @property
    def scores_echoes(self) -> bool:
        """Whether the prompts come with log-probabilities, and so with the first tokens."""
        return bool(self.echoes) and self.logprobs is not None

    def as_record(self) -> dict[str, Any]:
        """JSON values for `Record.request`."""
        return fields_of(self)

    @classmethod
    def from_record(cls, request: Mapping[str, Any]) -> CompletionParameters:
        """Raises: MalformedMessage: `as_record` has not written it."""
        try:
            return cls(**{**request, "echoes": tuple(request["echoes"])})
        except (KeyError, TypeError, ValueError):
            raise MalformedMessage("the job's record is not that of a completion") from None
