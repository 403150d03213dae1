"""Every way to ask for thoughts, in each API, for templates that know it and others."""

from typing import Any

import pytest
from pydantic import BaseModel

from rose_gateway.answers.thinking import ThinkingPlan, plan_thinking
from rose_gateway.chat import schema as chat
from rose_gateway.messages import schema as messages
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import Unsupported, parse
from rose_gateway.requests.warnings import AnswerWarning, header_of
from rose_gateway.responses import schema as responses

HI = [{"role": "user", "content": "hi"}]
APIS: dict[str, tuple[type[BaseModel], dict[str, Any], Unsupported]] = {
    "chat": (chat.ChatRequest, {"messages": HI}, chat.UNSUPPORTED),
    "responses": (responses.CreateResponse, {"input": "hi"}, responses.UNSUPPORTED),
    "messages": (
        messages.CreateMessage,
        {"messages": HI, "max_tokens": 9},
        messages.UNSUPPORTED,
    ),
    "count_tokens": (messages.CountTokens, {"messages": HI}, messages.UNSUPPORTED),
}


def model(*variables: str, thoughts: str = "") -> ServedModel:
    return ServedModel(name="m", queue="q", template_variables=variables, reasoning_format=thoughts)


PLAIN = model()
QWEN = model("enable_thinking", thoughts="think")
DEEPSEEK = model("thinking", thoughts="think")
COMMAND = model("reasoning", thoughts="command_r")
EFFORTS = model("enable_thinking", "reasoning_effort", thoughts="think")
ALWAYS = model(thoughts="think")
MISTRAL = model("reasoning_effort", thoughts="mistral")
GPT_OSS = model("reasoning_effort", thoughts="harmony")
SEED = model("thinking_budget", thoughts="think")
GLM = model("clear_thinking", "enable_thinking", thoughts="think")


def planned(given: dict[str, Any], served: ServedModel, api: str = "chat") -> ThinkingPlan:
    kind, needed, unsupported = APIS[api]
    request: Any = parse(kind, {"model": "m", **needed, **given}, unsupported)
    return plan_thinking(request, served, served.reasoning_format)


ON = {"enable_thinking": True}
OFF = {"enable_thinking": False}
HIGH = ON | {"reasoning_effort": "high"}

#: As it is said, and what a template is told that knows a switch and efforts.
SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"reasoning_effort": "high"}, HIGH),
    ({"reasoning_effort": "none"}, OFF),
    ({"reasoning_effort": "default"}, {}),
    ({"reasoning": {"effort": "high", "summary": "auto"}}, HIGH),
    ({"reasoning": {"effort": "none"}}, OFF),
    ({"reasoning": {"enabled": True}}, ON),
    ({"reasoning": {"enabled": False}}, OFF),
    ({"reasoning": {"effort": None, "summary": "detailed", "context": "auto"}}, {}),
    ({"reasoning": False}, OFF),
    ({"thinking": {"type": "enabled"}}, ON),
    ({"thinking": {"type": "disabled"}}, OFF),
    ({"thinking": {"type": "adaptive", "display": "summarized"}}, ON),
    ({"thinking": {"type": "auto"}}, ON),
    ({"thinking": False}, OFF),
    ({"enable_thinking": True}, ON),
    ({"enable_thinking": False}, OFF),
    ({"think": False}, OFF),
    ({"think": "high"}, HIGH),
    ({"chat_template_kwargs": {"enable_thinking": False}}, OFF),
    ({"chat_template_kwargs": {"thinking": True}}, ON | {"thinking": True}),
    ({"chat_template_kwargs": {"reasoning_effort": "high"}}, HIGH),
    ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
    # LiteLLM's and Claude Code's, through a router
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, HIGH),
    ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": True}}, HIGH),
    ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, None),
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("given", "told"), SPELLINGS)
def test_a_template_that_knows_it_is_told(
    api: str, given: dict[str, Any], told: dict[str, Any] | None
) -> None:
    plan = planned(given, EFFORTS, api)

    assert plan.template_kwargs == (OFF | {"reasoning_effort": "high"} if told is None else told)
    assert plan.warnings == ()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"enabled": True}}, "reasoning.enabled"),
        ({"thinking": {"type": "enabled"}}, "thinking.type"),
        ({"enable_thinking": True}, "enable_thinking"),
        ({"think": True}, "think"),
        ({"output_config": {"effort": "max"}}, "output_config.effort"),
        (
            {"chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking",
        ),
        ({"chat_template_kwargs": {"tone": "kind"}}, "chat_template_kwargs.tone"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            "output_config.effort",
        ),
        (
            {"thinking": {"type": "adaptive", "clear_thinking": True}},
            "thinking.clear_thinking",
        ),
        ({"chat_template_kwargs": {"thinking": "much"}}, "chat_template_kwargs.thinking"),
        (
            {"chat_template_kwargs": {"reasoning_effort": 3}},
            "chat_template_kwargs.reasoning_effort",
        ),
    ],
)
def test_a_model_that_knows_nothing_of_it_says_so(
    api: str, given: dict[str, Any], param: str
) -> None:
    plan = planned(given, PLAIN, api)

    assert [warning.param for warning in plan.warnings] == [param]
    assert plan.warnings[0].message.startswith(f"{param} has no effect: ")


@pytest.mark.parametrize("api", APIS)
def test_thoughts_are_left_out_of_messages_alone(api: str) -> None:
    warnings = planned({"thinking": {"type": "adaptive", "display": "omitted"}}, QWEN, api).warnings

    assert [warning.param for warning in warnings] == ["thinking.display"] * (
        api in ("chat", "responses")
    )


EFFORT_OF_A_TURN = [
    *HI,
    {"role": "assistant", "content": "hello"},
    {"role": "system", "content": "Think.", "output_config": {"effort": "low"}},
    {"role": "user", "content": "again"},
]


@pytest.mark.parametrize("api", ["messages", "count_tokens"])
def test_the_effort_of_the_last_turn_counts(api: str) -> None:
    given = {"messages": EFFORT_OF_A_TURN, "output_config": {"effort": "high"}}

    assert planned(given, EFFORTS, api).template_kwargs == {"reasoning_effort": "low"}
    assert planned(given, EFFORTS, api).warnings == ()
    (warning,) = planned(given, PLAIN, api).warnings
    assert warning.param == "messages[2].output_config.effort"


@pytest.mark.parametrize("more", [{"effort": "high"}, {"max_tokens": 1024}])
def test_what_is_switched_off_counts_beside_how_much(more: dict[str, Any]) -> None:
    (name,) = more
    plan = planned({"reasoning": {"enabled": False, **more}}, EFFORTS)

    assert plan.template_kwargs == OFF
    assert [one.param for one in plan.warnings] == [f"reasoning.{name}"]


def test_no_effort_of_the_answer_switches_thoughts_off() -> None:
    given = {"output_config": {"effort": "none"}}

    assert planned(given, QWEN).template_kwargs == OFF
    assert planned(given, MISTRAL).template_kwargs == {"reasoning_effort": "none"}
    assert [one.param for one in planned(given, ALWAYS).warnings] == ["output_config.effort"]


@pytest.mark.parametrize(("given", "told"), SPELLINGS)
def test_a_model_without_thoughts_needs_none_switched_off(
    given: dict[str, Any], told: dict[str, Any] | None
) -> None:
    if told == OFF:
        assert planned(given, PLAIN).warnings == ()


@pytest.mark.parametrize(
    ("given", "served", "told"),
    [
        ({"enable_thinking": True}, DEEPSEEK, {"thinking": True}),
        ({"thinking": {"type": "adaptive"}}, DEEPSEEK, {"thinking": True}),
        ({"reasoning_effort": "none"}, COMMAND, {"reasoning": False}),
        ({"reasoning_effort": "none"}, MISTRAL, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "disabled"}}, MISTRAL, {"reasoning_effort": "none"}),
        ({"reasoning_effort": "minimal"}, GPT_OSS, {"reasoning_effort": "low"}),
        ({"output_config": {"effort": "max"}}, GPT_OSS, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "enabled"}}, ALWAYS, {}),
        (
            {"thinking": {"type": "enabled", "clear_thinking": False}},
            GLM,
            {"enable_thinking": True, "clear_thinking": False},
        ),
        ({"reasoning": {"context": "current_turn"}}, GLM, {"clear_thinking": True}),
    ],
)
def test_each_family_is_told_in_its_own_words(
    given: dict[str, Any], served: ServedModel, told: dict[str, Any]
) -> None:
    assert planned(given, served) == ThinkingPlan(told)


@pytest.mark.parametrize(
    ("given", "served", "param"),
    [
        ({"reasoning_effort": "high"}, QWEN, "reasoning_effort"),
        ({"thinking": {"type": "disabled"}}, ALWAYS, "thinking.type"),
        ({"reasoning_effort": "none"}, ALWAYS, "reasoning_effort"),
        ({"reasoning_effort": "none"}, GPT_OSS, "reasoning_effort"),
        ({"enable_thinking": False}, GPT_OSS, "enable_thinking"),
    ],
)
def test_what_a_family_cannot_do_has_no_effect(
    given: dict[str, Any], served: ServedModel, param: str
) -> None:
    assert [warning.param for warning in planned(given, served).warnings] == [param]


def test_a_worker_that_does_not_say_what_its_template_reads_is_told() -> None:
    unknown = ServedModel(name="m", queue="q")

    assert planned({"reasoning_effort": "high"}, unknown) == ThinkingPlan(HIGH)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"reasoning": {"enabled": True, "effort": "none"}}, "reasoning.effort"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "reasoning_effort"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        (
            {"thinking": {"type": "disabled", "budget_tokens": 1024}},
            "thinking.budget_tokens",
        ),
        ({"thinking_budget": 1, "thinking_token_budget": 2}, "thinking_token_budget"),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
        ),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
        ({"thinking_budget": -2}, "thinking_budget"),
        ({"output_config": {"effort": "much"}}, "output_config.effort"),
        ({"reasoning": {"depth": 3}}, "reasoning.depth"),
    ],
)
def test_contradictions_and_unknown_values_are_refused_by_name(
    api: str, given: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        planned(given, EFFORTS, api)
    assert refused.value.param == param


BUDGETS = [
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ({"reasoning": {"max_tokens": 1024}}, "reasoning.max_tokens"),
    ({"thinking_budget": 1024}, "thinking_budget"),
    ({"thinking_token_budget": 1024}, "thinking_token_budget"),
    ({"chat_template_kwargs": {"thinking_budget": 1024}}, "chat_template_kwargs.thinking_budget"),
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("given", "param"), BUDGETS)
def test_a_budget_is_the_engines_and_of_templates_that_know_it(
    api: str, given: dict[str, Any], param: str
) -> None:
    limited = {"thought_format": "think", "thought_budget": 1024}

    assert planned(given, ALWAYS, api).sampling == limited
    assert planned(given, ALWAYS, api).warnings == ()
    assert planned(given, SEED, api).sampling == limited
    assert planned(given, SEED, api).template_kwargs["thinking_budget"] == 1024
    assert planned(given, PLAIN, api).sampling == {}
    assert param in [warning.param for warning in planned(given, PLAIN, api).warnings]


def test_no_budget_is_no_limit_and_an_empty_one_switches_thoughts_off() -> None:
    assert planned({"thinking_budget": -1}, QWEN) == ThinkingPlan(ON)
    assert planned({"thinking_budget": 0}, QWEN).template_kwargs == OFF
    assert planned({"thinking_budget": 0}, ALWAYS).sampling["thought_budget"] == 0
    assert planned({"thinking_budget": 0}, PLAIN) == ThinkingPlan({})


def test_a_header_holds_what_a_header_may() -> None:
    shown = [AnswerWarning(name, f"{name} has no effect").shown() for name in ("a", "ä\r\nb")]

    assert header_of(shown) == "a has no effect; ???b has no effect"
