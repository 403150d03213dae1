"""What asks a model to think, or not to: in the words of all clients."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.sampling import RequestModel

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "default", "auto"]
#: -1: no limit.
_Budget = Annotated[int, Field(ge=-1, le=2**31 - 1)]

#: Variables of chat templates that switch thoughts on and off; a template has one of them.
SWITCHES = ("enable_thinking", "thinking", "reasoning")
EFFORT, BUDGET = "reasoning_effort", "thinking_budget"


class Reasoning(RequestModel):
    """As OpenAI's responses and OpenRouter have it."""

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: _Budget | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard", "pro"] | None = None
    exclude: bool | None = None


class Thinking(RequestModel):
    """As Anthropic has it, and servers that took it over."""

    type: Literal["enabled", "disabled", "adaptive", "auto", "between_tools"]
    budget_tokens: _Budget | None = None
    display: Literal["summarized", "omitted"] | None = None
    clear_thinking: bool | None = None


class EffortConfig(RequestModel):
    effort: Effort | None = None


class ThinkingRequest(RequestModel):
    """Every way to say it, for each API."""

    hides_thoughts: ClassVar[bool] = False
    """its answer can leave thoughts out"""

    reasoning_effort: Effort | None = Field(
        default=None,
        description="none: no thoughts; default and auto leave it to the model",
    )
    reasoning: bool | Reasoning | None = Field(
        default=None,
        description="OpenAI's and OpenRouter's: effort; enabled; max_tokens, of thoughts. summary "
        "is accepted: thoughts are returned as the model wrote them",
    )
    thinking: bool | Thinking | None = Field(
        default=None,
        description="Anthropic's: type (enabled, disabled, adaptive, auto, between_tools); "
        "budget_tokens; display: omitted, in messages. GLM's: clear_thinking",
    )
    enable_thinking: bool | None = Field(default=None, description="Qwen's and vLLM's")
    think: bool | Effort | None = Field(default=None, description="Ollama's")
    thinking_budget: _Budget | None = Field(
        default=None, description="maximum number of tokens of thoughts; -1: no limit"
    )
    thinking_token_budget: _Budget | None = Field(default=None, description="vLLM's name of it")
    output_config: EffortConfig | None = Field(
        default=None, description="Anthropic's: effort, which may go with thoughts disabled"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None,
        description="vLLM's: variables of the model's chat template beside messages and tools, "
        'such as {"enable_thinking": false}; at most 16 KiB',
    )

    def efforts(self) -> Iterator[tuple[str, str | None]]:
        """What is said of the whole answer, thoughts or not, by the paths of its fields: the last
        one counts."""
        if self.output_config is not None:
            yield "output_config.effort", self.output_config.effort


class Said(NamedTuple):
    """One thing that a field of the request says."""

    param: str
    what: Literal["enabled", "allowed", "effort", "answer's effort", "budget", "clear", "ignored"]
    value: Any
    """of what is ignored: why"""


class ThinkingWish(NamedTuple):
    """What a request asks for, all its fields together; None where it says nothing."""

    enabled: Said | None
    """whether there are thoughts"""
    is_allowed: bool
    """there may be some"""
    effort: Said | None
    budget: Said | None
    """in tokens, negative for no limit"""
    clear: Said | None
    """whether earlier thoughts are left out of the prompt"""
    ignored: tuple[Said, ...]
    variables: dict[str, Any]
    """of the chat template, by their own names"""


def thinking_wish(request: ThinkingRequest) -> ThinkingWish | None:
    """None where it asks for nothing. Raises: BadRequest: fields contradict each other."""
    said = list(_said(request))
    if not said and not request.chat_template_kwargs:
        return None
    return ThinkingWish(
        _agreed(_switched(said)),
        any(one.what == "allowed" for one in said),
        _agreed(one for one in said if one.what in ("effort", "answer's effort")),
        _agreed(one for one in said if one.what == "budget"),
        _agreed(one for one in said if one.what == "clear"),
        tuple(one for one in said if one.what == "ignored"),
        dict(request.chat_template_kwargs or {}),
    )


def _said(request: ThinkingRequest) -> Iterator[Said]:
    """What the fields say, those that leave things open left out."""
    yield from _effort("reasoning_effort", request.reasoning_effort)
    match request.reasoning:
        case bool(enabled):
            yield Said("reasoning", "enabled", enabled)
        case Reasoning() as reasoning:
            yield from _reasoning(reasoning)
            if reasoning.exclude:
                yield Said("reasoning.exclude", "ignored", "thoughts are returned by themselves")
            if reasoning.mode == "pro":
                yield Said("reasoning.mode", "ignored", "the models here have one mode")
            if reasoning.context in ("current_turn", "all_turns"):
                yield Said("reasoning.context", "clear", reasoning.context == "current_turn")
    match request.thinking:
        case bool(enabled):
            yield Said("thinking", "enabled", enabled)
        case Thinking(type="enabled" | "disabled" as kind) as thinking:
            yield Said("thinking.type", "enabled", kind == "enabled")
            yield from _budget("thinking.budget_tokens", thinking.budget_tokens)
        case Thinking() as thinking:
            yield Said("thinking.type", "allowed", True)
            yield from _budget("thinking.budget_tokens", thinking.budget_tokens)
    if isinstance(request.thinking, Thinking):
        if request.thinking.clear_thinking is not None:
            yield Said("thinking.clear_thinking", "clear", request.thinking.clear_thinking)
        if request.thinking.display == "omitted" and not request.hides_thoughts:
            yield Said("thinking.display", "ignored", "thoughts are returned by themselves")
    yield from _flag("enable_thinking", request.enable_thinking)
    if isinstance(request.think, bool):
        yield Said("think", "enabled", request.think)
    else:
        yield from _effort("think", request.think)
    yield from _budget("thinking_budget", request.thinking_budget)
    yield from _budget("thinking_token_budget", request.thinking_token_budget)
    for one in [one for said in request.efforts() for one in _effort(*said)][-1:]:
        yield one._replace(what="answer's effort")
    for name, value in (request.chat_template_kwargs or {}).items():
        param = f"chat_template_kwargs.{name}"
        if not is_understood(name, value):
            continue
        if name in SWITCHES:
            yield Said(param, "enabled", value)
        elif name == EFFORT:
            yield Said(param, "effort", value)
        else:
            yield Said(param, "budget", value)


def is_understood(name: str, value: Any) -> bool:
    """Whether a variable of a chat template says something that is known here."""
    if name in SWITCHES:
        return isinstance(value, bool)
    if name == EFFORT:
        return isinstance(value, str)
    return name == BUDGET and isinstance(value, int) and not isinstance(value, bool)


def _reasoning(reasoning: Reasoning) -> Iterator[Said]:
    """claude-code-router says `enabled: false` beside an effort for thinking that is adaptive."""
    yield from _flag("reasoning.enabled", reasoning.enabled)
    for said in (
        *_effort("reasoning.effort", reasoning.effort),
        *_budget("reasoning.max_tokens", reasoning.max_tokens),
    ):
        if reasoning.enabled is False and said.value not in ("none", 0):
            yield said._replace(what="ignored", value="reasoning.enabled is false")
        else:
            yield said


def _effort(param: str, effort: str | None) -> Iterator[Said]:
    if effort not in (None, "default", "auto"):
        yield Said(param, "effort", effort)


def _flag(param: str, enabled: bool | None) -> Iterator[Said]:
    if enabled is not None:
        yield Said(param, "enabled", enabled)


def _budget(param: str, tokens: int | None) -> Iterator[Said]:
    if tokens is not None:
        yield Said(param, "budget", tokens)


def _switched(said: Iterable[Said]) -> Iterator[Said]:
    """What says that there are thoughts, or none, and at first what says just that. Anthropic's
    effort is of answers without thoughts as well."""
    for one in sorted(said, key=lambda one: one.what != "enabled"):
        if one.what == "enabled":
            yield one
        elif one.what == "effort" or (one.what == "answer's effort" and one.value == "none"):
            yield one._replace(value=one.value != "none")
        elif one.what == "budget":
            yield one._replace(value=one.value != 0)


def _agreed(said: Iterable[Said]) -> Said | None:
    """The first one, where all say the same. Raises: BadRequest"""
    agreed: Said | None = None
    for one in said:
        agreed = agreed or one
        if agreed.value != one.value:
            raise BadRequest(
                f"{one.param} contradicts {agreed.param}: leave one of them out", one.param
            )
    return agreed
