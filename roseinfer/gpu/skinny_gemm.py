"""Launches of the GEMM for few rows: see kernels/skinny_gemm.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.gpu import kernels
from roseinfer.gpu.device import cdiv, device_guard, multiprocessors
from roseinfer.gpu.kernels.skinny_gemm import skinny_gemm_kernel
from roseinfer.model.families import Activation, NormPart

MAX_ROWS = 16  # the fewest that a tensor core multiplies, so fewer rows are no faster
OPTIONS = {"num_warps": 4, "num_stages": 4}
_MAX_BLOCK_BYTES = 128  # of one input's weights for all outputs of a program


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights [outputs, inputs], row by row, and a bias [outputs] or None.

    `activation` is applied to the product; with `gated`, to its first half, which then multiplies
    the second.
    """

    weight: Tensor
    bias: Tensor | None = None
    activation: Activation | None = None
    gated: bool = False


def skinny_gemm(
    x: Tensor,
    matrix: Matrix,
    *,
    norm: NormPart | None = None,
    add_to: Tensor | None = None,
) -> Tensor:
    """`x` [rows, inputs], at most MAX_ROWS rows, times `matrix`: [rows, outputs] in its dtype.

    With `norm`, `x` is float32 and goes through that RMS norm first. With `add_to` [rows, outputs],
    float32, the product is added to it in place, and `add_to` is returned.
    """
    weight, bias, gated = matrix.weight, matrix.bias, matrix.gated
    outputs, inputs = len(weight) // (2 if gated else 1), weight.shape[1]
    out = add_to if add_to is not None else x.new_empty(len(x), outputs, dtype=weight.dtype)
    block = block_of(outputs, weight)
    with device_guard(x):
        skinny_gemm_kernel[(cdiv(outputs, block),)](
            x,
            weight,
            bias if bias is not None else weight,
            norm.weight if norm is not None else weight,
            out,
            len(x),
            x.stride(0),
            out.stride(0),
            norm.epsilon if norm is not None else 0.0,
            OUTPUTS=outputs,
            INPUTS=inputs,
            HAS_BIAS=bias is not None,
            HAS_NORM=norm is not None,
            ADDS=add_to is not None,
            GATED=gated,
            ACTIVATION=-1 if matrix.activation is None else int(matrix.activation),
            WIDEN=kernels.INTERPRETED and weight.dtype == torch.bfloat16,
            BLOCK_R=MAX_ROWS,
            BLOCK_N=block,
            BLOCK_K=inputs_of(block, norm is not None),
            **OPTIONS,
        )
    return out


def block_of(outputs: int, weight: Tensor) -> int:
    """Outputs of a program: the most that fit shared memory and leave two programs for every
    multiprocessor, so that one computes while the other waits for memory."""
    for block in (64, 32):
        fits = block * weight.dtype.itemsize <= _MAX_BLOCK_BYTES
        if fits and outputs >= 2 * block * multiprocessors(weight.device):
            return block
    return 16


def inputs_of(block: int, normed: bool) -> int:
    """Inputs that a program with `block` outputs reads at a time: many keep memory busy, fewer need
    fewer registers."""
    return 256 if block == 16 and not normed else 128
