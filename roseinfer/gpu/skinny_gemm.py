"""Launches of the GEMM for few rows: see kernels/skinny_gemm.py."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from roseinfer.gpu import kernels
from roseinfer.gpu.device import cdiv, device_guard, multiprocessors
from roseinfer.gpu.kernels.skinny_gemm import skinny_gemm_kernel
from roseinfer.model.families import Activation

MAX_ROWS = 16  # the fewest that a tensor core multiplies, so fewer rows are no faster
_TILE_BYTES = 16 * 1024


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


class Tile(NamedTuple):
    """Outputs of a program, inputs that it reads at a time, its warps, and how many such tiles of
    weights are on their way or in use."""

    outputs: int
    inputs: int
    warps: int
    stages: int


def skinny_gemm(x: Tensor, matrix: Matrix, *, add_to: Tensor | None = None) -> Tensor:
    """`x` [rows, inputs], at most MAX_ROWS rows, times `matrix`: [rows, outputs] in its dtype.

    With `add_to` [rows, outputs], float32, the product is added to it in place, and `add_to` is
    returned.
    """
    weight, bias, gated = matrix.weight, matrix.bias, matrix.gated
    outputs, inputs = len(weight) // (2 if gated else 1), weight.shape[1]
    out = add_to if add_to is not None else x.new_empty(len(x), outputs, dtype=weight.dtype)
    tile = choose_tile(outputs, weight, gated=gated)
    with device_guard(x):
        skinny_gemm_kernel[(cdiv(outputs, tile.outputs),)](
            x,
            weight,
            bias if bias is not None else weight,
            out,
            len(x),
            x.stride(0),
            out.stride(0),
            OUTPUTS=outputs,
            INPUTS=inputs,
            HAS_BIAS=bias is not None,
            ADDS=add_to is not None,
            GATED=gated,
            ACTIVATION=-1 if matrix.activation is None else int(matrix.activation),
            WIDEN=kernels.INTERPRETED and weight.dtype == torch.bfloat16,
            BLOCK_R=MAX_ROWS,
            BLOCK_N=tile.outputs,
            BLOCK_K=tile.inputs,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out


def choose_tile(outputs: int, weight: Tensor, *, gated: bool) -> Tile:
    """Of 16 KiB: as high as leaves most multiprocessors something to do. Measured on an H200."""
    count = multiprocessors(weight.device)
    height = next((size for size in (32, 16) if 2 * cdiv(outputs, size) > count), 8)
    # As many inputs of all rows are in shared memory too, beside one tile or, of gated ones, two.
    row_bytes = min(_TILE_BYTES // height, 1024 if gated else 2048)
    return Tile(height, row_bytes // weight.dtype.itemsize, 4, 3 if gated or height < 32 else 4)
