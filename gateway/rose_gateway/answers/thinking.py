"""How a model is made to think as a request wishes.

reasoning_effort, reasoning, thinking, ...  ->  wish  ->  variables of the chat template
                                                      ->  a limit that the engine keeps
                                                      ->  warnings of what has no effect
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rose.formats.registry import HARMONY
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.requests.thinking import (
    BUDGET,
    EFFORT,
    SWITCHES,
    ThinkingRequest,
    ThinkingWish,
    is_understood,
    thinking_wish,
)
from rose_gateway.requests.warnings import AnswerWarning

#: gpt-oss knows three.
_HARMONY_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_CLEAR = "clear_thinking"


NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class ThinkingPlan(NamedTuple):
    """What a job needs, and what has no effect."""

    template_kwargs: dict[str, Any]
    sampling: Mapping[str, Any] = NO_FIELDS
    """fields of SamplingParams"""
    warnings: tuple[AnswerWarning, ...] = ()


def plan_thinking(request: ThinkingRequest, model: ServedModel, thoughts: str) -> ThinkingPlan:
    """`thoughts`: the format in which the answer may have some, "" for none.

    Raises: BadRequest: fields contradict each other.
    """
    wish = thinking_wish(request)
    return ThinkingPlan({}) if wish is None else _Planner(wish, model, thoughts).plan()


class _Planner:
    def __init__(self, wish: ThinkingWish, model: ServedModel, thoughts: str) -> None:
        self._wish, self._model, self._thoughts = wish, model, thoughts
        self._warnings: list[AnswerWarning] = []

    def plan(self) -> ThinkingPlan:
        given = self._wish.variables
        for said in self._wish.ignored:
            self._warn(said.param, said.value)
        for name, value in given.items():
            if not (self._knows(name) or is_understood(name, value)):
                self._warn(
                    f"chat_template_kwargs.{name[:64]}",
                    "the chat template of this model has no such variable",
                )
        wanted = self._switch() | self._effort()
        limit = self._limit()
        if limit is not None and self._knows(BUDGET):
            wanted[BUDGET] = limit
        if (clear := self._wish.clear) is not None:
            if self._knows(_CLEAR):
                wanted[_CLEAR] = clear.value
            else:
                self._warn(
                    clear.param,
                    "the chat template of this model says which earlier thoughts are read",
                )
        sampling: dict[str, Any] = {}
        if limit is not None and self._thoughts:
            sampling = {"thought_format": self._thoughts, "thought_budget": limit}
        return ThinkingPlan(wanted | given, sampling, tuple(self._warnings))

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
        self._warn(param, "the chat template of this model knows no efforts")
        return {}

    def _limit(self) -> int | None:
        """In tokens."""
        budget, known = self._wish.budget, self._model.template_variables
        if budget is None or budget.value < 0:
            return None
        if not self._thoughts and budget.value and BUDGET not in (known or ()):
            self._warn(budget.param, "this answer has no thoughts that could be ended")
        return int(budget.value)

    def _warn(self, param: str, reason: str) -> None:
        self._warnings.append(AnswerWarning(param, f"{param} has no effect: {reason}"))
