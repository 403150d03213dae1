"""Common parts of models, done in fewer operations.

A part is recognised by its shape (the names of its pieces) and then by what it does: the fused
version replaces it only if it gives the same answer on a random input. Whatever is not recognised
stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor, nn

from roseinfer import kernels
from roseinfer.packed_linear import PackedLinear, is_plain

_PROBE_ROWS = 3
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # relative, of the whole output
_ATTENTION = ("q_proj", "k_proj", "v_proj")
_MLP = ("gate_proj", "up_proj", "down_proj", "act_fn")


class SharedProjection:
    """Several linear layers of one input as a single product.

    Computed when the first of them is asked, kept until all have been: `slices` are what takes
    their places.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias for linear in linears]
        bias = torch.cat([b.detach() for b in biases]) if biases[0] is not None else None
        self.product = PackedLinear(weight, bias)
        self.sizes = [linear.out_features for linear in linears]
        self.slices = [_Slice(self, index) for index in range(len(linears))]
        self._input: Tensor | None = None
        self._outputs: list[Tensor | None] = []

    def output(self, x: Tensor, index: int) -> Tensor:
        kept = self._outputs[index] if self._input is x else None
        if kept is None:
            self._input, self._outputs = x, list(self.product(x).split(self.sizes, dim=-1))
            kept = self._outputs[index]
            assert kept is not None  # noqa: S101 - just computed
        self._outputs[index] = None
        if not any(output is not None for output in self._outputs):
            self._input = None
        return kept


class _Slice(nn.Module):
    """One of the layers of a SharedProjection."""

    def __init__(self, shared: SharedProjection, index: int) -> None:
        super().__init__()
        self._shared, self._index = shared, index
        self.out_features = shared.sizes[index]
        self.in_features = shared.product.in_features

    @property
    def weight(self) -> Tensor:
        """The plain weight, unpacked anew: for code that reads it, not for products."""
        return torch.split(self._shared.product.weight, self._shared.sizes)[self._index]

    @property
    def bias(self) -> Tensor | None:
        whole = self._shared.product.bias
        return None if whole is None else torch.split(whole, self._shared.sizes)[self._index]

    def forward(self, x: Tensor) -> Tensor:
        return self._shared.output(x, self._index)


class FusedRMSNorm(nn.Module):
    """`weight * x / rms(x)`, the root mean square taken in float32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        if kernels.can_normalise(x, self.weight):
            return kernels.rms_norm(x, self.weight, self.variance_epsilon)
        return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def fuse(model: nn.Module) -> int:
    """Replace what is recognised in `model`, which is on CPU; returns how many parts were."""
    replaced = 0
    # Not the leaves: a layer that is replaced must be freed.
    for parent in [module for module in model.modules() if any(True for _ in module.children())]:
        replaced += _share(parent, _ATTENTION)
        if all(hasattr(parent, name) for name in _MLP):
            replaced += _share(parent, _MLP[:2])
        for name, child in list(parent.named_children()):
            if _looks_like_rms_norm(child):
                replaced += _replace_norm(parent, name, child)
    return replaced


def _share(parent: nn.Module, names: Sequence[str]) -> bool:
    linears: list[Any] = [getattr(parent, name, None) for name in names]
    if not all(isinstance(linear, nn.Linear) and is_plain(linear) for linear in linears):
        return False
    if len({(x.in_features, x.weight.dtype, x.bias is None) for x in linears}) != 1:
        return False
    for name, piece in zip(names, SharedProjection(linears).slices, strict=True):
        setattr(parent, name, piece)
    return True


def _looks_like_rms_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return (
        type(module).__name__.endswith("RMSNorm")
        and isinstance(weight, Tensor)
        and weight.dtype in _TOLERANCE
        and weight.device.type == "cpu"
        and isinstance(getattr(module, "variance_epsilon", None), float)
    )


def _replace_norm(parent: nn.Module, name: str, norm: Any) -> bool:
    fused = FusedRMSNorm(norm.weight, norm.variance_epsilon)
    if not _same(norm, fused, norm.weight):
        return False
    setattr(parent, name, fused)
    return True


@torch.inference_mode()
def _same(
    one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], weight: Tensor
) -> bool:
    """Whether two layers of one input agree on a random one."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1, _PROBE_ROWS, weight.shape[-1], generator=random).to(weight.dtype)
    expected, got = one(x).float(), other(x).float()
    return bool((expected - got).norm() <= _TOLERANCE[weight.dtype] * expected.norm())
