"""Mixtures of experts in transformers' models: who chooses the experts of a token, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor


class Scoring(IntEnum):
    """How a router's outputs become scores, as types.h numbers it."""

    SOFTMAX = 0
    SIGMOID = 1


_SIGMOID = ("glm4_moe", "dots1", "minimax_m2")


@dataclass(frozen=True, slots=True)
class ExpertParts:
    """What a layer has beside the matrices of its experts.

    A token's experts are those with the highest scores, `bias` added. Their scores, without it,
    weigh them: divided by their sum if it `normalizes`, times `scale`. With groups only the experts
    of some are compared: those whose two highest have the largest sums.
    """

    router: Tensor
    """float32 [count, hidden], and if it `gates_shared` a row for that expert's weight"""
    count: int
    chosen: int
    scoring: Scoring
    normalizes: bool
    scale: float = 1.0
    bias: Tensor | None = None
    """float32 [count]"""
    router_bias: Tensor | None = None
    """float32 [count], of what it makes of a token"""
    groups: int = 1
    chosen_groups: int = 1
    shared_gate_up: list[Any] = field(default_factory=list)
    shared_down: Any | None = None
    """Linear layers of an expert that computes every token"""
    gates_shared: bool = False

    @property
    def shared_linears(self) -> list[list[Any]]:
        return [] if self.shared_down is None else [self.shared_gate_up, [self.shared_down]]


def find_experts(layer: Any, mlp: Any, family: str) -> ExpertParts:
    """The parts of `mlp`, a mixture of experts in `layer`, but for the matrices."""
    router: Any = router_of(mlp)
    statistics = getattr(router, "moe_statics", None)
    bias = _first_of(router, mlp, statistics, name="e_score_correction_bias")
    shared = _first_of(mlp, name="shared_expert")
    shared = _first_of(mlp, name="shared_experts") if shared is None else shared
    shared = _first_of(layer, name="shared_mlp") if shared is None else shared
    gate = getattr(mlp, "shared_expert_gate", None)
    rows = [router.weight] if gate is None else [router.weight, gate.weight]
    return ExpertParts(
        router=torch.cat([weight.detach().float() for weight in rows]),
        count=router.num_experts,
        chosen=router.top_k,
        scoring=Scoring.SIGMOID if family in _SIGMOID else Scoring.SOFTMAX,
        normalizes=getattr(router, "norm_topk_prob", True),
        scale=getattr(router, "routed_scaling_factor", 1.0),
        bias=None if bias is None else bias.detach().float().flatten().clone(),
        router_bias=_as_float(getattr(router, "bias", None)),
        groups=getattr(router, "num_group", 1),
        chosen_groups=getattr(router, "topk_group", 1),
        shared_gate_up=[] if shared is None else _gate_up(shared),
        shared_down=None if shared is None else _down(shared),
        gates_shared=gate is not None,
    )


def _as_float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().float().clone()


def router_of(mlp: Any) -> Any | None:
    """The module that chooses the experts of `mlp`."""
    return getattr(mlp, "router", None) or getattr(mlp, "gate", None)


def _first_of(*modules: Any, name: str) -> Any | None:
    return next(
        (found for module in modules if (found := getattr(module, name, None)) is not None), None
    )


def _gate_up(shared: Any) -> list[Any]:
    if hasattr(shared, "input_linear"):
        return [shared.input_linear]
    return [shared.gate_proj, shared.up_proj]


def _down(shared: Any) -> Any:
    return shared.output_linear if hasattr(shared, "output_linear") else shared.down_proj
