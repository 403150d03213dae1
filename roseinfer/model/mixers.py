"""Layers with a state in transformers' models: their convolution and recurrence, for the compiled
decoder. `model.state_layers` finds the same modules to run them in transformers' code."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch import Tensor, nn

from roseinfer.model.linears import GroupedLinear, children


class Mixing(IntEnum):
    """As types.h numbers them; states.h says in which order `input` has its outputs."""

    SHORT_CONVOLUTION = 0
    DELTA_RULE = 1
    STATE_SPACE = 2


@dataclass(frozen=True, slots=True)
class MixerParts:
    """What a layer has instead of attention. The heads of a group share queries and keys."""

    mixing: Mixing
    input: list[Any]
    output: Any
    taps: Tensor
    """float32 [kernel, channels]"""
    bias: Tensor | None
    """float32 [channels]"""
    groups: int = 0
    heads: int = 0
    keys: int = 0
    values: int = 0
    norm: Tensor | None = None
    """float32 [heads * values], over `normed` outputs at a time; Falcon H1 may have none"""
    normed: int = 0
    epsilon: float = 0.0
    decay: Tensor | None = None
    """float32 [heads], what a step is multiplied by to be the logarithm of a decay"""
    step_bias: Tensor | None = None
    """float32 [heads], added to a step before"""
    beta_scale: float = 1.0
    skip: Tensor | None = None
    """float32 [heads], how much of its values a token's outputs have"""
    steps: tuple[float, float] = (0.0, math.inf)
    """The least and the most that a step may be."""
    gates_last: bool = False
    """Or before the norm"""
    multipliers: Tensor | None = None
    """float32 [projected]"""

    @property
    def kernel(self) -> int:
        return self.taps.shape[0]

    @property
    def channels(self) -> int:
        return self.taps.shape[1]

    @property
    def projected(self) -> int:
        """How many outputs `input` has in all."""
        if self.mixing == Mixing.SHORT_CONVOLUTION:
            return 3 * self.channels
        each = 2 if self.mixing == Mixing.DELTA_RULE else 1
        return self.channels + self.heads * (self.values + each)

    @property
    def mixed(self) -> int:
        """How many inputs `output` has."""
        return self.heads * self.values or self.channels


def find_mixer(layer: Any) -> MixerParts | None:
    """The parts of a layer that does not attend; None if it is of an unusual kind."""
    net = getattr(layer, "linear_attn", None)
    if net is not None:
        return _delta_net(net) if net.activation == "silu" and net.conv1d.bias is None else None
    space = _first_of(layer, "mamba", "mixer")
    if space is not None:
        return _state_space(space) if space.activation == "silu" else None
    short = _first_of(layer, "conv")
    return None if short is None else _short_convolution(short)


def _first_of(layer: Any, *names: str) -> Any | None:
    found = (getattr(layer, name, None) for name in names)
    return next((module for module in found if module is not None), None)


def _delta_net(net: Any) -> MixerParts:
    norm = children(net, ("norm",), ("o_norm",))[0]
    output = children(net, ("out_proj",), ("o_proj",))[0]
    return MixerParts(
        Mixing.DELTA_RULE,
        _delta_linears(net),
        output,
        _taps(net.conv1d),
        None,
        groups=net.num_k_heads,
        heads=net.num_v_heads,
        keys=net.head_k_dim,
        values=net.head_v_dim,
        norm=norm.weight.detach().float().repeat(net.num_v_heads),
        normed=net.head_v_dim,
        epsilon=float(norm.variance_epsilon),
        decay=-net.A_log.detach().float().exp(),
        step_bias=net.dt_bias.detach().float(),
        beta_scale=2.0 if getattr(net, "allow_neg_eigval", False) else 1.0,
        gates_last=True,
    )


def _state_space(space: Any) -> MixerParts:
    """Mamba 2's."""
    bias, (least, most) = space.conv1d.bias, space.time_step_limit
    norm, multipliers = space.norm, getattr(space, "mup_vector", None)
    if multipliers is not None:
        multipliers = multipliers.detach().float().flatten() * space.ssm_in_multiplier
    width = space.num_heads * space.head_dim
    normed = getattr(norm, "group_size", width // getattr(norm, "n_groups", 1))
    return MixerParts(
        Mixing.STATE_SPACE,
        [space.in_proj],
        space.out_proj,
        _taps(space.conv1d),
        None if bias is None else bias.detach().float(),
        groups=space.n_groups,
        heads=space.num_heads,
        keys=space.ssm_state_size,
        values=space.head_dim,
        norm=None if isinstance(norm, nn.Identity) else norm.weight.detach().float(),
        normed=normed,
        epsilon=float(getattr(norm, "variance_epsilon", 0.0)),
        gates_last=getattr(norm, "norm_before_gate", False),
        multipliers=multipliers,
        decay=-space.A_log.detach().float().exp(),
        step_bias=space.dt_bias.detach().float(),
        skip=space.D.detach().float(),
        steps=(float(least), float(most)),
    )


def _delta_linears(net: Any) -> list[Any]:
    if hasattr(net, "in_proj_qkvz"):  # Qwen 3 Next has group by group what belongs to it
        groups, share = net.num_k_heads, net.num_v_heads // net.num_k_heads
        values = share * net.head_v_dim
        sizes = (net.head_k_dim, net.head_k_dim, values, values)
        return [
            GroupedLinear(net.in_proj_qkvz, groups, sizes),
            GroupedLinear(net.in_proj_ba, groups, (share, share)),
        ]
    return children(
        net,
        ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
        ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj"),
    )


def _short_convolution(short: Any) -> MixerParts:
    bias = short.conv.bias
    return MixerParts(
        Mixing.SHORT_CONVOLUTION,
        [short.in_proj],
        short.out_proj,
        _taps(short.conv),
        None if bias is None else bias.detach().float(),
    )


def _taps(convolution: nn.Conv1d) -> Tensor:
    return convolution.weight.detach().float().squeeze(1).T.contiguous()
