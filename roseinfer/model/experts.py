"""Mixtures of experts in transformers' models: who chooses the experts of a token, and how."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from roseinfer.model.linears import mlp_linears


class Scoring(IntEnum):
    """How a router's outputs become scores, as types.h numbers it."""

    SOFTMAX = 0
    SIGMOID = 1


_SIGMOID = (
    *("glm4_moe", "dots1", "minimax_m2", "lfm2_moe", "nemotron_h"),
    *("deepseek_v3", "glm4_moe_lite", "solar_open", "exaone_moe", "hy_v3"),
)


@dataclass(frozen=True, slots=True)
class ExpertParts:
    """What a layer has beside the matrices of its experts.

    A token's experts are those with the highest scores, `bias` added. Their scores, without it,
    weigh them: divided by their sum if it `normalizes`, times `scale`. With groups only the experts
    of some are compared: those whose `compared` highest have the largest sums.
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
    scales: Tensor | None = None
    """float32 [count], factors of the experts' weights"""
    router_norm: Tensor | None = None
    """float32 [hidden], of what the router reads, if it is not what the experts read"""
    groups: int = 1
    chosen_groups: int = 1
    compared: int = 2
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
    bias = _first_of(
        *(getattr(part, "e_score_correction_bias", None) for part in (router, mlp, statistics)),
        getattr(mlp, "expert_bias", None),
    )
    shared = _first_of(
        *(getattr(mlp, name, None) for name in ("shared_expert", "shared_experts")),
        getattr(mlp, "shared_mlp", None),
        getattr(layer, "shared_mlp", None),
    )
    shared_gate_up, shared_down = ([], None) if shared is None else mlp_linears(shared)
    gate = getattr(mlp, "shared_expert_gate", None)
    grouped = getattr(router, "topk_method", "") != "greedy"  # DeepSeek V2's may not read them
    groups = getattr(router, "num_group", 1) if grouped else 1
    chooses = getattr(router, "wg", router)  # Hunyuan's
    rows = [chooses.weight] if gate is None else [chooses.weight, gate.weight]
    return ExpertParts(
        router=torch.cat([weight.detach().float() for weight in rows]),
        count=router.num_experts,
        chosen=router.top_k,
        scoring=Scoring.SIGMOID if family in _SIGMOID else Scoring.SOFTMAX,
        normalizes=getattr(router, "norm_topk_prob", family != "deepseek_v2"),
        scale=getattr(
            router, "routed_scaling_factor", getattr(router, "router_scaling_factor", 1.0)
        ),
        bias=_as_float(bias),
        router_bias=_as_float(getattr(router, "bias", None)),
        groups=groups,
        chosen_groups=getattr(router, "topk_group", 1) if groups > 1 else 1,
        compared=1 if family == "deepseek_v2" else 2,
        shared_gate_up=shared_gate_up,
        shared_down=shared_down,
        gates_shared=gate is not None,
    )


def find_gemma4_experts(layer: Any) -> ExpertParts:
    """Beside an MLP of a Gemma 4. Its router reads a norm of its own."""
    router = layer.router
    return ExpertParts(
        router=router.proj.weight.detach().float(),
        count=layer.experts.num_experts,
        chosen=router.config.top_k_experts,
        scoring=Scoring.SOFTMAX,
        normalizes=True,
        scales=_as_float(router.per_expert_scale),
        router_norm=router.scale.detach().float() * router.scalar_root_size,
    )


def _as_float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().float().flatten().clone()


def router_of(mlp: Any) -> Any | None:
    """The module that chooses the experts of `mlp`."""
    return getattr(mlp, "router", None) or getattr(mlp, "gate", None)


def _first_of(*found: Any | None) -> Any | None:
    return next((one for one in found if one is not None), None)
