"""A request for text, from HTTP or from a batch, and what chats and completions do with it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from rose.protocol import Priority
from rose_gateway.access.authentication import Caller
from rose_gateway.answers.rendering import AnswerHeader, Chunks, Collector, collected
from rose_gateway.jobs.job_client import JobGroup, Submission
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import Unsupported, parse
from rose_gateway.requests.sampling import RequestModel, few
from rose_gateway.requests.warnings import AnswerWarning
from rose_gateway.services import Services

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


Model = TypeVar("Model", bound=BaseModel)

#: Tiers that ask for no more than the lowest priority gives.
_MODEST_TIERS = (None, "auto", "default", "flex")


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingRequest:
    services: Services
    caller: Caller
    body: bytes | Mapping[str, Any]
    """the JSON text, or the object that it says"""
    sha256: str
    """of the bytes that a repeat with the same idempotency key must have, in hexadecimal"""
    idempotency_key: str | None = None
    """one that no other caller can say: as `callers_key` or `lines_key` make it"""
    priority: Priority | None = None
    """of a batch; None: what the body's service_tier asks for"""
    session: str | None = None
    """what the client's headers call the conversation"""
    continues: bool = False
    """the job goes on although the client has gone"""

    def parsed(self, model: type[Model], unsupported: Unsupported | None = None) -> Model:
        """Raises: BadRequest"""
        nesting = self.services.settings.max_nesting
        return parse(model, self.body, unsupported, max_nesting=nesting)

    def priority_of(self, tier: str | None) -> Priority:
        """Raises: BadRequest: a batch is not served before others."""
        if self.priority is None:
            return priority_of(tier, self.caller)
        if tier not in _MODEST_TIERS:
            raise BadRequest(
                f"service_tier: the lines of a batch have the priority {self.priority.value}: "
                "leave it out, or send the request by itself",
                "service_tier",
            )
        return self.priority

    def warned(self, warnings: Sequence[AnswerWarning]) -> list[dict[str, Any]]:
        """As a record keeps them. Raises: BadRequest: this gateway refuses what has no effect."""
        if warnings and self.services.settings.without_effect == "refuse":
            param, message, _ = warnings[0]
            raise BadRequest(message, param, code="unsupported_parameter")
        return [warning.shown() for warning in warnings]


#: In which Claude Code, Codex (both spellings), opencode and others name a conversation.
_SESSION_HEADERS = (
    *("x-claude-code-session-id", "session-id", "session_id", "conversation_id"),
    *("x-session-affinity", "x-session-id"),
)
_MAX_SESSION = 256


def session_of(headers: Mapping[str, str]) -> str | None:
    for name in _SESSION_HEADERS:
        if session := headers.get(name):
            return session[:_MAX_SESSION]
    return None


def callers_key(caller: Caller, given: str) -> str:
    """For the Idempotency-Key that a caller has sent."""
    return f"{caller.key_id}\0{given}"


def lines_key(caller: Caller, batch_id: str, number: int) -> str:
    """For a line of a batch. No `callers_key` begins so: a key's id is empty or hexadecimal."""
    return f"line\0{caller.key_id}\0{batch_id}:{number}"


Made = TypeVar("Made")


class StorableRequest(Protocol):
    @property
    def store(self) -> bool | None: ...


class Parameters(Protocol):
    """What a request asked for, as its record keeps it."""

    @property
    def stream(self) -> bool: ...

    @property
    def vocabulary(self) -> str:
        """Its key; "" where no token is to be named."""


ChoicesRequest = TypeVar("ChoicesRequest", bound=StorableRequest, contravariant=True)


@dataclass(frozen=True, slots=True)
class ChoicesEndpoint(Generic[ChoicesRequest]):
    make_submission: Callable[[IncomingRequest, ChoicesRequest], Awaitable[Submission]]
    """Raises: BadRequest, ApiError, BrokerUnavailable"""
    parameters: Callable[[Mapping[str, Any]], Parameters]
    """of a record's request. Raises: MalformedMessage"""
    make_chunks: Callable[..., Chunks]
    make_collector: Callable[..., Collector]

    async def answer(
        self, services: Services, group: JobGroup, *, pause_s: float = 0.0
    ) -> dict[str, Any]:
        """The whole answer, when it has ended. `pause_s`: as for `JobGroup.bursts`.

        Raises: ApiError, JobNotFound, BrokerUnavailable
        """
        collector = await self.collector(services, group)
        return await collected(group, collector, pause_s=pause_s)

    async def collector(self, services: Services, group: JobGroup) -> Collector:
        """Raises: MalformedMessage, BrokerUnavailable"""
        return await self._made(self.make_collector, services, group)

    async def chunks(self, services: Services, group: JobGroup) -> Chunks:
        """The stream, whatever the request was for. Raises: MalformedMessage, BrokerUnavailable"""
        return await self._made(self.make_chunks, services, group)

    async def _made(self, make: Callable[..., Made], services: Services, group: JobGroup) -> Made:
        record = group.own_record
        parameters = self.parameters(record.request)
        names = await services.vocabularies.get(parameters.vocabulary)
        header = AnswerHeader(
            [job.id for job in group.jobs], record.model, group.created_at, record.warnings
        )
        return make(parameters, header, names)
