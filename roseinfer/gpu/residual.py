"""The residual stream of a step, by the skinny GEMM or by torch's: see decoder.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.gpu.layers import apply_activation, residual_norm
from roseinfer.gpu.skinny_gemm import MAX_ROWS, Matrix, skinny_gemm
from roseinfer.model.families import NormPart


def residual_stream(hidden: Tensor, dtype: torch.dtype) -> SkinnyGemmStream | LibraryGemmStream:
    """A stream that begins with `hidden` [T, H], float32, and changes it in place. Products are
    computed in `dtype`.

    A branch begins with a norm and a product (`project`) and ends with a product and a sum
    (`add`); `sum` gives the stream with all that was added.
    """
    if len(hidden) <= MAX_ROWS:
        return SkinnyGemmStream(hidden, dtype)
    return LibraryGemmStream(hidden, dtype)


class SkinnyGemmStream:
    """Activations and sums are fused into the skinny GEMM."""

    def __init__(self, hidden: Tensor, dtype: torch.dtype) -> None:
        self._hidden, self._dtype = hidden, dtype

    def project(self, norm: NormPart, matrix: Matrix) -> Tensor:
        """The normed stream times `matrix`, after its activation."""
        return skinny_gemm(residual_norm(self._hidden, norm, self._dtype), matrix)

    def add(self, x: Tensor, matrix: Matrix, after: NormPart | None) -> None:
        """Add `x` times `matrix`, through the norm `after` if there is one."""
        if after is None:
            skinny_gemm(x, matrix, add_to=self._hidden)
        else:
            residual_norm(
                self._hidden, None, self._dtype, delta=skinny_gemm(x, matrix), after=after
            )

    def sum(self) -> Tensor:
        return self._hidden


class LibraryGemmStream:
    """torch computes the products; each sum is fused with the next norm."""

    def __init__(self, hidden: Tensor, dtype: torch.dtype) -> None:
        self._hidden, self._dtype = hidden, dtype
        self._pending: tuple[Tensor, NormPart | None] | None = None

    def project(self, norm: NormPart, matrix: Matrix) -> Tensor:
        product = F.linear(self._sum_and_norm(norm), matrix.weight, matrix.bias)
        if matrix.activation is None:
            return product
        return apply_activation(product, matrix.gated, matrix.activation)

    def add(self, x: Tensor, matrix: Matrix, after: NormPart | None) -> None:
        self._pending = F.linear(x, matrix.weight, matrix.bias), after

    def sum(self) -> Tensor:
        return self._sum_and_norm(None) if self._pending is not None else self._hidden

    def _sum_and_norm(self, norm: NormPart | None) -> Tensor:
        delta, after = self._pending or (None, None)
        self._pending = None
        return residual_norm(self._hidden, norm, self._dtype, delta=delta, after=after)
