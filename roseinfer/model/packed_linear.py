"""Linear layers whose weights lie in memory as oneDNN's kernels want them.

A plain linear layer on CPU has its weights reordered inside every call. Packed once at load, a
product takes half to nine tenths of the time for a decode batch, in float32 much less. The packed
weights replace the plain ones; only a weight that something else uses as well (an output layer
tied to the embedding) is held twice.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

# Rows for which the layout is chosen: a decode batch. Other counts use the same layout.
_EXPECTED_ROWS = 32

_DTYPES = (torch.float32, torch.bfloat16)
#: What torch has for its own compiler, in builds with oneDNN.
_OPERATIONS = ("_linear_pointwise", "_reorder_linear_weight")


class PackedLinear(nn.Module):
    """`activation(x @ weight.T + bias)` for a weight [out, in] on CPU, in float32 or bfloat16.

    `activation`: none, or gelu, the exact one, in the same pass over the outputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        super().__init__()
        self._activation = activation
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().contiguous(), _EXPECTED_ROWS
        )

    @property
    def weight(self) -> Tensor:
        """The plain weight, unpacked anew: for code that reads it, not for products."""
        return self._packed.to_dense()

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self.bias, self._activation, [], "none"
        )
        return product


def _can_pack(weight: Tensor) -> bool:
    """Whether this machine's torch has a packed product for `weight`."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and all(hasattr(torch.ops.mkldnn, name) for name in _OPERATIONS)
        and weight.device.type == "cpu"
        and weight.dtype in _DTYPES
        and (weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def pack_linears(model: nn.Module) -> int:
    """Replace the linear layers of `model` where that is possible; returns how many were.

    One after the other, so that the weights are never all in memory twice.
    """
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if is_plain(child)
    ]
    # A layer may be used in two places, and then stays one. Weak: a replaced layer must be freed.
    packed: WeakKeyDictionary[nn.Module, PackedLinear] = WeakKeyDictionary()
    count = 0
    for parent, name in places:
        plain = getattr(parent, name)
        if plain not in packed:
            packed[plain] = pack(plain)
            count += 1
        setattr(parent, name, packed[plain])
    return count


def is_plain(module: Any) -> bool:
    """Whether `module` is a linear layer and nothing more that can be packed.

    A subclass may mean something else by `forward`, and so may hooks.
    """
    return (
        type(module) in (nn.Linear, Conv1D)
        and not (module._forward_hooks or module._forward_pre_hooks)
        and _can_pack(module.weight)
    )


def pack(module: Any, activation: str = "none") -> PackedLinear:
    """`module`: one of which `is_plain` is true."""
    weight = module.weight.T if isinstance(module, Conv1D) else module.weight
    return PackedLinear(weight, module.bias, activation)
