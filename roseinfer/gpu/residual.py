"""The residual stream of a step, for few rows and for many: see decoder.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.gpu.layers import apply_activation, residual_norm
from roseinfer.gpu.skinny_gemm import MAX_ROWS, Matrix, skinny_gemm
from roseinfer.model.families import NormPart


def stream_of(hidden: Tensor, dtype: torch.dtype) -> FewRows | ManyRows:
    """A stream that begins with `hidden` [T, H], float32, and changes it in place. Products are
    computed in `dtype`.

    Branches leave it through a norm (`enter`) and come back as a sum (`leave`); `settle` gives the
    stream with all that was added.
    """
    if len(hidden) <= MAX_ROWS:
        return FewRows(hidden, dtype)
    return ManyRows(hidden, dtype)


class FewRows:
    """Norms, activations and sums are fused into the skinny GEMM."""

    def __init__(self, hidden: Tensor, dtype: torch.dtype) -> None:
        self._hidden, self._dtype = hidden, dtype

    def enter(self, norm: NormPart, matrix: Matrix) -> Tensor:
        """The normed stream times `matrix`, after its activation."""
        # Values before the division by the norm may overflow float16.
        if norm.bias is not None or self._dtype == torch.float16:
            return skinny_gemm(residual_norm(self._hidden, norm, self._dtype), matrix)
        return skinny_gemm(self._hidden, matrix, norm=norm)

    def leave(self, x: Tensor, matrix: Matrix, after: NormPart | None) -> None:
        """Add `x` times `matrix`, through the norm `after` if there is one."""
        if after is None:
            skinny_gemm(x, matrix, add_to=self._hidden)
        else:
            residual_norm(
                self._hidden, None, self._dtype, delta=skinny_gemm(x, matrix), after=after
            )

    def settle(self) -> Tensor:
        return self._hidden


class ManyRows:
    """torch computes the products; each sum is fused with the next norm."""

    def __init__(self, hidden: Tensor, dtype: torch.dtype) -> None:
        self._hidden, self._dtype = hidden, dtype
        self._waiting: tuple[Tensor, NormPart | None] | None = None

    def enter(self, norm: NormPart, matrix: Matrix) -> Tensor:
        product = F.linear(self._add(norm), matrix.weight, matrix.bias)
        if matrix.activation is None:
            return product
        return apply_activation(product, matrix.gated, matrix.activation)

    def leave(self, x: Tensor, matrix: Matrix, after: NormPart | None) -> None:
        self._waiting = F.linear(x, matrix.weight, matrix.bias), after

    def settle(self) -> Tensor:
        return self._add(None) if self._waiting is not None else self._hidden

    def _add(self, norm: NormPart | None) -> Tensor:
        delta, after = self._waiting or (None, None)
        self._waiting = None
        return residual_norm(self._hidden, norm, self._dtype, delta=delta, after=after)
