"""Linear layers in the order that oneDNN multiplies, with what follows them in the same pass.

torch brings weights to that order in each call and copies the bias first. Measured on a core of a
Zen 4, a product of 1,024 rows takes 0.8 of the time so, of 16 rows 0.6; with GELU 0.7 and 0.5.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation

_DTYPES = (torch.float32, torch.bfloat16)
#: What torch has for its own compiler, in builds with oneDNN.
_OPERATIONS = ("_linear_pointwise", "_reorder_linear_weight")


class PackedLinear(nn.Module):
    """`activation`: none or gelu, of its outputs."""

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._weight, self._bias, self._activation, [], "none"
        )
        return product


class PackedLinears:
    """Those of a model, until `restore`. Where oneDNN cannot serve them there are none."""

    def __init__(self, model: Any) -> None:
        self._replaced: list[tuple[nn.Module, str, nn.Module]] = []
        if (
            model.device.type == "cpu"
            and model.dtype in _DTYPES
            and all(hasattr(torch.ops.mkldnn, name) for name in _OPERATIONS)
        ):
            for parent in list(model.modules()):
                self._replace_in(parent)

    def restore(self) -> None:
        for parent, name, module in self._replaced:
            setattr(parent, name, module)

    def _replace_in(self, parent: nn.Module) -> None:
        fused = _fused(parent)
        for name, linear in list(_linears(parent)):
            self._set(parent, name, PackedLinear(linear, "gelu" if name == fused else "none"))
        if fused is not None:
            self._set(parent, "intermediate_act_fn", nn.Identity())

    def _set(self, parent: nn.Module, name: str, module: nn.Module) -> None:
        self._replaced.append((parent, name, getattr(parent, name)))
        setattr(parent, name, module)


def _linears(parent: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in parent.named_children():
        if type(module) is nn.Linear:
            yield name, module


def _fused(parent: nn.Module) -> str | None:
    """The layer that BERT's kind, and nothing else, activates by the exact GELU."""
    activation = getattr(parent, "intermediate_act_fn", None)
    exact = isinstance(activation, GELUActivation) and activation.act is nn.functional.gelu
    return "dense" if exact and type(getattr(parent, "dense", None)) is nn.Linear else None
