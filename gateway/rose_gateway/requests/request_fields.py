"""Fields that several of OpenAI's endpoints share, and what they mean to the queue."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rose.protocol import Priority
from rose_gateway.access.caller import Caller
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.sampling import RequestModel, few

MAX_CHOICES = 16

_MAX_PAIRS = 16
_MAX_KEY = 64
_Value = Annotated[str, Field(max_length=512)]

Metadata = Annotated[
    dict[str, _Value], Field(max_length=_MAX_PAIRS), BeforeValidator(few(_MAX_PAIRS, "pairs"))
]

ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]

#: Whom the queue serves first.
_PRIORITIES = {
    "flex": Priority.LOW,
    "scale": Priority.HIGH,
    "priority": Priority.HIGH,
    "fast": Priority.HIGH,
}
_TIERS = {Priority.LOW: "flex", Priority.NORMAL: "default", Priority.HIGH: "priority"}

#: What is asked for where nobody has announced how long the model's context is.
_UNKNOWN_CONTEXT = 4096


class StreamOptions(RequestModel):
    include_usage: bool | None = Field(
        default=None, description="a last chunk has the usage, and all others `usage: null`"
    )
    include_obfuscation: bool | None = Field(
        default=None, description="accepted; streams carry no padding"
    )
    continuous_usage_stats: bool | None = Field(
        default=None,
        description="vLLM's, as guidellm sends it: accepted; the usage comes with the last chunk",
    )


def priority_of(tier: str | None, caller: Caller) -> Priority:
    """Where the request does not say it, normal or what the caller may have at the most."""
    if tier in (None, "auto") and not caller.may_have(Priority.NORMAL):
        return caller.limits.max_priority
    return _PRIORITIES.get(tier or "auto", Priority.NORMAL)


def tier_of(priority: Priority | str) -> str:
    """The tier as the answer tells it."""
    return _TIERS[Priority(priority)]


def check_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    """Raises: BadRequest: a name is too long."""
    for name in metadata or ():
        if len(name) > _MAX_KEY:
            raise BadRequest(
                f"metadata: the name {name[:32]!r}... has {len(name)} characters, the limit is "
                f"{_MAX_KEY}",
                "metadata",
            )
    return metadata or {}


def token_limit(requested: int | None, context_tokens: int | None) -> int:
    """The most tokens to generate: as many as fit where a request does not say it, and no more
    than that in any case, since they count as the load of the queue."""
    if requested is None:
        return context_tokens or _UNKNOWN_CONTEXT
    return requested if context_tokens is None else min(requested, context_tokens)
