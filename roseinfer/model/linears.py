"""Matrices of a model's linear layers, whichever way it keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True, slots=True)
class StackedLinear:
    """The matrices of a layer's experts, one parameter [experts, outputs, inputs], as those of a
    linear layer: the outputs of an expert after those of another."""

    module: nn.Module
    name: str

    @property
    def parameter(self) -> nn.Parameter:
        parameter: nn.Parameter = getattr(self.module, self.name)
        return parameter

    @property
    def weight(self) -> Tensor:
        return self.parameter.flatten(0, 1)

    @property
    def bias(self) -> None:
        return None


#: Those that compute `x @ weight.T + bias` and nothing more.
PLAIN = (nn.Linear, Conv1D, StackedLinear)


def weight_of(linear: Any) -> Tensor:
    """Weights [outputs, inputs], whichever way the layer keeps them."""
    weight: Tensor = linear.weight
    return weight.T if isinstance(linear, Conv1D) else weight


def parameter_of(linear: Any) -> nn.Parameter:
    """What the model knows the weights by."""
    parameter: nn.Parameter = (
        linear.parameter if isinstance(linear, StackedLinear) else linear.weight
    )
    return parameter


def take_weight(linear: Any) -> torch.Size:
    """The layer loses its weights; returns the shape that `give_weight` needs."""
    parameter = parameter_of(linear)
    shape = parameter.shape
    parameter.data = parameter.data.new_empty(0)
    return shape


def give_weight(linear: Any, weight: Tensor, shape: torch.Size) -> None:
    """The layer gets weights [outputs, inputs] back, in the shape that it keeps them in."""
    kept = weight.T if isinstance(linear, Conv1D) else weight
    parameter_of(linear).data = kept.reshape(shape).contiguous()


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
