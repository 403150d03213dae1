"""How a model is made to think as a request wishes.

reasoning_effort, reasoning, thinking, ...  ->  wish  ->  variables of the chat template
                                                      ->  a limit that the engine keeps
                                                      ->  warnings of what has no effect
"""

from typing import Any, NamedTuple

from rose.formats.registry import HARMONY
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.requests.thinking import (
    BUDGET,
    EFFORT,
    SWITCHES,
    ThinkingRequest,
    ThinkingWish,
    thinking_wish,
)
from rose_gateway.requests.warnings import AnswerWarning

#: gpt-oss knows three.
_HARMONY_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_CLEAR = "clear_thinking"


class ThinkingPlan(NamedTuple):
    """What a job needs, and what has no effect."""

    template_kwargs: dict[str, Any]
    warnings: tuple[AnswerWarning, ...] = ()


def plan_thinking(request: ThinkingRequest, model: ServedModel) -> ThinkingPlan:
    """Raises: BadRequest: fields contradict each other."""
    wish = thinking_wish(request)
    return ThinkingPlan({}) if wish is None else _Planner(wish, model).plan()


class _Planner:
    def __init__(self, wish: ThinkingWish, model: ServedModel) -> None:
        self._wish, self._model = wish, model
        self._warnings: list[AnswerWarning] = []

    def plan(self) -> ThinkingPlan:
        given, known = self._wish.variables, self._model.template_variables
        for said in self._wish.ignored:
            self._warn(said.param, said.value)
        for name in given:
            if known is not None and name not in (*known, *SWITCHES, EFFORT, BUDGET):
                self._warn(
                    f"chat_template_kwargs.{name[:64]}",
                    "the chat template of this model has no such variable",
                )
        wanted = self._switch() | self._effort() | self._budget()
        if self._wish.clear is not None and self._knows(_CLEAR):
            wanted[_CLEAR] = self._wish.clear
        return ThinkingPlan(wanted | given, tuple(self._warnings))

    def _knows(self, name: str) -> bool:
        """Whether the template reads it, or may: a worker that does not say it is told."""
        known = self._model.template_variables
        return known is None or name in known

    def _switch(self) -> dict[str, Any]:
        enabled = self._wish.enabled
        value = enabled.value if enabled else self._wish.is_allowed or None
        if value is None:
            return {}
        name = next((name for name in SWITCHES if self._knows(name)), None)
        if name is not None:
            return {name: value}
        if value is False and self._knows(EFFORT) and self._model.reasoning_format != HARMONY:
            return {EFFORT: "none"}
        if enabled and enabled.what == "enabled" and value != bool(self._model.reasoning_format):
            self._warn(
                enabled.param,
                "this model writes no thoughts that are known here"
                if value
                else "the chat template of this model cannot switch thoughts off",
            )
        return {}

    def _effort(self) -> dict[str, Any]:
        if self._wish.effort is None:
            return {}
        param, _, effort = self._wish.effort
        if self._model.reasoning_format == HARMONY and self._knows(EFFORT):
            if effort == "none":
                self._warn(param, "this model always thinks, and is told to think little")
            return {EFFORT: _HARMONY_EFFORTS.get(effort, effort)}
        if effort == "none":  # the switch says it, where there is one
            if self._model.reasoning_format and not any(map(self._knows, (*SWITCHES, EFFORT))):
                self._warn(param, "the chat template of this model cannot switch thoughts off")
            return {}
        if self._knows(EFFORT):
            return {EFFORT: effort}
        if self._wish.enabled is None or self._wish.enabled.value:
            self._warn(param, "the chat template of this model knows no efforts")
        return {}

    def _budget(self) -> dict[str, Any]:
        budget, known = self._wish.budget, self._model.template_variables
        if budget is None or budget.value < 0:
            return {}
        if known is not None and BUDGET in known:
            return {BUDGET: budget.value}
        self._warn(budget.param, "this model has no thoughts that could be ended")
        return {}

    def _warn(self, param: str, reason: str) -> None:
        self._warnings.append(AnswerWarning(param, f"{param} has no effect: {reason}"))
