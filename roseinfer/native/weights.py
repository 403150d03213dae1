"""Weights as the compiled products read them: panels of 16 outputs (layout: gemm.h)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.families import join_biases
from roseinfer.native.library import PANEL_WIDTH, Matrix, library


class PackedMatrix:
    """Weights [outputs, inputs] in float32 or bfloat16, and a bias [outputs] or None.

    `inputs` must be even.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        self.dtype = weight.dtype
        self.panels = _pack(weight)
        self.bias = None if bias is None else _padded(bias.float())

    @property
    def struct(self) -> Matrix:
        """For the library; valid as long as this object lives."""
        return Matrix(
            self.panels.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            self.outputs,
            self.inputs,
            self.dtype == torch.bfloat16,
        )

    def unpack(self) -> Tensor:
        """The weights as they were, [outputs, inputs]."""
        panels = self.panels.view(
            -1, self.inputs // _pair(self.dtype), PANEL_WIDTH, _pair(self.dtype)
        )
        return panels.transpose(1, 2).reshape(-1, self.inputs)[: self.outputs].contiguous()

    def multiply(self, x: Tensor) -> Tensor:
        """x [rows, inputs], float32, times the weights transposed: [rows, outputs].

        Where the build multiplies pairs of bfloat16, x is rounded to the weights' type.
        """
        x = x.clone(memory_format=torch.contiguous_format)  # the library uses it up
        out = torch.empty(len(x), self.outputs)
        library().rose_multiply(self.struct, x.data_ptr(), len(x), out.data_ptr())
        return out


def concatenate(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> PackedMatrix:
    """Several matrices of the same inputs as one, outputs side by side."""
    return PackedMatrix(torch.cat(list(weights)), join_biases(weights, biases))


def _pair(dtype: torch.dtype) -> int:
    return 2 if dtype == torch.bfloat16 else 1


def _padded(values: Tensor) -> Tensor:
    """With zeros to a multiple of PANEL_WIDTH along the first dimension."""
    missing = -len(values) % PANEL_WIDTH
    return F.pad(values, (0, 0) * (values.dim() - 1) + (0, missing)).contiguous()


def _pack(weight: Tensor) -> Tensor:
    pair = _pair(weight.dtype)
    panels = _padded(weight.detach()).view(-1, PANEL_WIDTH, weight.shape[1] // pair, pair)
    return panels.transpose(1, 2).contiguous()
