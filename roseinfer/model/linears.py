"""Matrices of a model's linear layers, whichever way it keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True, slots=True)
class StackedLinear:
    """The matrices of a layer's experts, one parameter [experts, outputs, inputs], as those of a
    linear layer: the outputs of an expert after those of another.

    `is_transposed`: it is [experts, inputs, outputs]. `alternates`: each gate is followed by what
    it multiplies; here all gates come first.
    """

    module: nn.Module
    name: str
    is_transposed: bool = False
    alternates: bool = False

    @property
    def parameter(self) -> nn.Parameter:
        parameter: nn.Parameter = getattr(self.module, self.name)
        return parameter

    @property
    def weight(self) -> Tensor:
        """[experts * outputs, inputs]"""
        weights = self.parameter.transpose(1, 2) if self.is_transposed else self.parameter
        return self._gates_first(weights).flatten(0, 1)

    @property
    def bias(self) -> Tensor | None:
        """[experts * outputs]"""
        bias: Tensor | None = getattr(self.module, f"{self.name}_bias", None)
        return None if bias is None else self._gates_first(bias).flatten()

    @property
    def shape(self) -> tuple[int, int]:
        experts, outputs, inputs = self.parameter.shape
        if self.is_transposed:
            outputs, inputs = inputs, outputs
        return experts * outputs, inputs

    @property
    def is_plain(self) -> bool:
        """Whether `weight` is the parameter in another shape."""
        return not (self.is_transposed or self.alternates)

    @property
    def order(self) -> Tensor | None:
        """Which of the parameter's outputs are the first here, the second and so on; None: its own
        order."""
        if not self.alternates:
            return None
        outputs = torch.arange(self.shape[0]).view(len(self.parameter), -1)
        return self._gates_first(outputs).flatten()

    def set_in(self, whole: Tensor, weight: Tensor) -> None:
        """`weight` [experts * outputs, inputs], in the parameter's numbers `whole`."""
        weights = weight.view(len(whole), -1, weight.shape[1])
        if self.alternates:
            weights = torch.stack(weights.chunk(2, dim=1), dim=2).flatten(1, 2)
        whole.copy_(weights.transpose(1, 2) if self.is_transposed else weights)

    def _gates_first(self, stacked: Tensor) -> Tensor:
        if not self.alternates:
            return stacked
        return torch.cat([stacked[:, 0::2], stacked[:, 1::2]], dim=1)


@dataclass(frozen=True, slots=True)
class _OfLinear:
    linear: Any

    @property
    def parameter(self) -> nn.Parameter:
        parameter: nn.Parameter = self.linear.weight
        return parameter


@dataclass(frozen=True, slots=True)
class _OtherOrder(_OfLinear):
    """A linear layer whose outputs are here in another order."""

    @property
    def order(self) -> Tensor:
        """Which of the layer's outputs are the first here, the second and so on."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        return self.parameter[self.order]

    @property
    def bias(self) -> Tensor | None:
        bias: Tensor | None = self.linear.bias
        return None if bias is None else bias[self.order]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.order), self.parameter.shape[1]

    def set_in(self, whole: Tensor, weight: Tensor) -> None:
        """`weight` [outputs, inputs], in the layer's weights `whole`."""
        whole[self.order] = weight


@dataclass(frozen=True, slots=True)
class GroupedLinear(_OtherOrder):
    """A linear layer whose outputs are `groups` groups of parts of these sizes. Here the first
    parts of all groups come first, then the second ones, and so on."""

    groups: int
    sizes: tuple[int, ...]

    @property
    def order(self) -> Tensor:
        outputs = torch.arange(self.groups * sum(self.sizes)).view(self.groups, -1)
        parts = torch.split(outputs, list(self.sizes), dim=1)
        return torch.cat([part.flatten() for part in parts])


@dataclass(frozen=True, slots=True)
class RepeatedLinear(_OtherOrder):
    """A linear layer each of whose outputs is here `times` times."""

    times: int

    @property
    def order(self) -> Tensor:
        return torch.arange(self.linear.out_features).repeat_interleave(self.times)


@dataclass(frozen=True, slots=True)
class PartOfHeads(_OfLinear):
    """Some of the outputs that a linear layer without a bias has for each of `heads` heads, head by
    head. `is_transposed`: those are the inputs here, and its inputs the outputs of each head.

    The part that begins with a head's first output is taken and given back before the others.
    """

    heads: int
    first: int
    end: int
    is_transposed: bool = False

    bias = None

    @property
    def weight(self) -> Tensor:
        part = self._of(self.parameter)
        return (part.transpose(1, 2) if self.is_transposed else part).flatten(0, 1)

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.end - self.first, self.linear.in_features
        if self.is_transposed:
            outputs, inputs = inputs, outputs
        return self.heads * outputs, inputs

    @property
    def is_last(self) -> bool:
        return bool(self.end == self.linear.out_features // self.heads)

    def set_in(self, whole: Tensor, weight: Tensor) -> None:
        """`weight` [outputs, inputs] of this part, in the layer's weights `whole`."""
        part = weight.view(self.heads, -1, weight.shape[1])
        self._of(whole).copy_(part.transpose(1, 2) if self.is_transposed else part)

    def _of(self, whole: Tensor) -> Tensor:
        return whole.view(self.heads, -1, whole.shape[1])[:, self.first : self.end]


_REARRANGED = (StackedLinear, GroupedLinear, RepeatedLinear, PartOfHeads)

#: Those that compute `x @ weight.T + bias` and nothing more.
PLAIN = (nn.Linear, Conv1D, *_REARRANGED)


def children(module: Any, *spellings: Sequence[str]) -> list[Any]:
    """Those of the first spelling that the module has."""
    names = next(names for names in spellings if hasattr(module, names[0]))
    return [getattr(module, name) for name in names]


def mlp_linears(mlp: Any) -> tuple[list[Any], Any]:
    """The layers before its activation, those with gates first, and the one behind it."""
    before = children(
        mlp,
        *(("gate_proj", "up_proj"), ("gate_up_proj",), ("input_linear",), ("c_fc",), ("fc1",)),
        *(("w1", "w3"), ("up_proj",)),
    )
    (behind,) = children(mlp, ("down_proj",), ("output_linear",), ("c_proj",), ("fc2",), ("w2",))
    return before, behind


def weight_of(linear: Any) -> Tensor:
    """Weights [outputs, inputs], whichever way the layer keeps them."""
    weight: Tensor = linear.weight
    return weight.T if isinstance(linear, Conv1D) else weight


def shape_of(linear: Any) -> tuple[int, int]:
    """Outputs and inputs."""
    if isinstance(linear, _REARRANGED):
        return linear.shape
    outputs, inputs = weight_of(linear).shape
    return outputs, inputs


def parameter_of(linear: Any) -> nn.Parameter:
    """What the model knows the weights by."""
    rearranged = isinstance(linear, _REARRANGED)
    parameter: nn.Parameter = linear.parameter if rearranged else linear.weight
    return parameter


def place_of(linear: Any) -> tuple[nn.Module, str]:
    """The module that has that parameter, and its name there."""
    if isinstance(linear, StackedLinear):
        return linear.module, linear.name
    return (linear.linear if isinstance(linear, _OfLinear) else linear), "weight"


def take_weight(linear: Any) -> torch.Size:
    """The layer loses its weights; returns the shape that `give_weight` needs."""
    parameter = parameter_of(linear)
    shape = parameter.shape
    if not isinstance(linear, PartOfHeads) or linear.is_last:
        parameter.data = parameter.data.new_empty(0)
    return shape


def give_weight(linear: Any, weight: Tensor, shape: torch.Size) -> None:
    """The layer gets weights [outputs, inputs] back, in the shape that it keeps them in."""
    parameter = parameter_of(linear)
    if type(linear) is nn.Linear or (type(linear) is StackedLinear and linear.is_plain):
        parameter.data = weight.view(shape)
        return
    if parameter.shape != shape:  # a part before this one may have given it
        parameter.data = weight.new_empty(shape)
    _set_in(linear, parameter.data, weight)


def set_weight(linear: Any, weight: Tensor) -> None:
    """Other weights [outputs, inputs], where the layer has its own."""
    _set_in(linear, parameter_of(linear).detach(), weight)


def _set_in(linear: Any, whole: Tensor, weight: Tensor) -> None:
    if isinstance(linear, _REARRANGED):
        linear.set_in(whole, weight)
    else:
        whole.copy_(weight.T if isinstance(linear, Conv1D) else weight)


def join_biases(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor | None:
    """The biases of matrices whose outputs lie side by side, zeros for one that has none."""
    if all(bias is None for bias in biases):
        return None
    return torch.cat(
        [
            weight.new_zeros(len(weight)) if bias is None else bias.detach()
            for weight, bias in zip(weights, biases, strict=True)
        ]
    )
