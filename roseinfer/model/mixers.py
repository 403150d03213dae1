"""Layers with a state in transformers' models: their convolution and recurrence, for the compiled
decoder. `model.state_layers` finds the same modules to run them in transformers' code."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch import Tensor

from roseinfer.model.linears import GroupedLinear, children


class Mixing(IntEnum):
    """As types.h numbers them; states.h says in which order `input` has its outputs."""

    SHORT_CONVOLUTION = 0
    DELTA_RULE = 1


@dataclass(frozen=True, slots=True)
class MixerParts:
    """What a layer has instead of attention. As many heads as a group has share queries and keys."""

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
    """float32 [values], of each head's outputs"""
    epsilon: float = 0.0
    decay: Tensor | None = None
    """float32 [heads], what a step is multiplied by to be the logarithm of a decay"""
    step_bias: Tensor | None = None
    """float32 [heads], added to a step before"""
    beta_scale: float = 1.0

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
        return self.channels + self.heads * (self.values + 2)

    @property
    def mixed(self) -> int:
        """How many inputs `output` has."""
        return self.heads * self.values or self.channels


def find_mixer(layer: Any) -> MixerParts | None:
    """The parts of a layer that does not attend; None if it is of an unusual kind."""
    net = getattr(layer, "linear_attn", None)
    if net is not None:
        return _delta_net(net) if net.activation == "silu" and net.conv1d.bias is None else None
    short: Any = getattr(layer, "conv", None)
    return None if short is None else _short_convolution(short)


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
        norm=norm.weight.detach().float(),
        epsilon=float(norm.variance_epsilon),
        decay=-net.A_log.detach().float().exp(),
        step_bias=net.dt_bias.detach().float(),
        beta_scale=2.0 if getattr(net, "allow_neg_eigval", False) else 1.0,
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


def _taps(convolution: Any) -> Tensor:
    return convolution.weight.detach().float().squeeze(1).T.contiguous()
