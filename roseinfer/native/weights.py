"""Weights as the compiled products read them: panels of 16 outputs (see gemm.h, quantized.h)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.families import join_biases
from roseinfer.native.library import PANEL_WIDTH, Matrix, WeightType, library
from roseinfer.quantization import GROUP, QuantizedWeight, join

_TYPES = {torch.float32: WeightType.FLOAT32, torch.bfloat16: WeightType.BFLOAT16}
# By bits, whether there are minimums, and whether there are zeros.
_QUANTIZED_TYPES = {
    (8, False, False): WeightType.INT8,
    (4, False, False): WeightType.INT4,
    (8, True, False): WeightType.INT8_MINIMUM,
    (4, True, False): WeightType.INT4_MINIMUM,
    (8, False, True): WeightType.INT8_ZERO,
    (4, False, True): WeightType.INT4_ZERO,
}


class AnyMatrix(Protocol):
    outputs: int
    inputs: int

    @property
    def struct(self) -> Matrix: ...

    def unpack(self) -> Tensor: ...


class _Panels:
    """Panels and a bias, as the library reads both."""

    def __init__(
        self,
        panels: Tensor,
        shape: tuple[int, int],
        weight_type: WeightType,
        bias: Tensor | None,
    ) -> None:
        self.panels = panels
        self.outputs, self.inputs = shape
        self._type = weight_type
        self.bias = None if bias is None else _padded(bias.float())

    @property
    def struct(self) -> Matrix:
        """For the library; valid as long as this object lives."""
        return Matrix(
            self.panels.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            self.outputs,
            self.inputs,
            self._type,
        )

    def multiply(self, x: Tensor) -> Tensor:
        """x [rows, inputs], float32, times the weights transposed: [rows, outputs].

        Where the build multiplies pairs of bfloat16, x is rounded to the weights' type; beside
        quantized weights to 8 bits in groups.
        """
        out = torch.empty(len(x), self.outputs)
        self.multiply_into(out, spread(x))
        return out

    def multiply_into(self, out: Tensor, x: Tensor) -> None:
        """The same into `out` [rows, outputs], float32; rows of x may lie apart. x is used up."""
        library().rose_multiply(self.struct, x.data_ptr(), x.stride(0), len(x), out.data_ptr())


class PackedMatrix(_Panels):
    """Weights [outputs, inputs] in float32 or bfloat16, and a bias [outputs] or None.

    `inputs` must be even.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        rows, inputs = weight.shape
        super().__init__(_pack(weight), (rows, inputs), _TYPES[weight.dtype], bias)
        self.dtype = weight.dtype

    def unpack(self) -> Tensor:
        """The weights as they were, [outputs, inputs]."""
        panels = self.panels.view(
            -1, self.inputs // _pair(self.dtype), PANEL_WIDTH, _pair(self.dtype)
        )
        return panels.transpose(1, 2).reshape(-1, self.inputs)[: self.outputs].contiguous()


class QuantizedMatrix(_Panels):
    """Weights of 8 or 4 bits, and a bias [outputs] or None."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
        rows, inputs = weight.values.shape
        kind = _QUANTIZED_TYPES[weight.form]
        super().__init__(_pack_quantized(weight), (rows, inputs), kind, bias)
        self._form = weight.form

    def unpack(self) -> Tensor:
        """The weights [outputs, inputs] that the numbers stand for, in bfloat16."""
        bits, has_minimums, has_zeros = self._form
        groups = self.inputs // GROUP
        bytes_ = self.panels.view(-1, groups, self.panels.shape[-1])
        offset = 0

        def array(dtype: torch.dtype) -> Tensor:
            """The next of a header: [outputs, groups]."""
            nonlocal offset
            begin, offset = offset, offset + dtype.itemsize * PANEL_WIDTH
            part = bytes_[..., begin:offset].contiguous().view(dtype)
            return part.transpose(1, 2).reshape(-1, groups)

        scales = array(torch.float16)
        minimums = array(torch.float16) if has_minimums else None
        zeros = array(torch.uint8) if has_zeros else None
        units = bytes_[..., offset:].reshape(*bytes_.shape[:2], bits, 1, PANEL_WIDTH, 4)
        halves = units if bits == 8 else torch.cat([units & 15, units >> 4], dim=3)
        # [panels, groups, units, steps, outputs, 4]
        values = halves.permute(0, 4, 1, 2, 3, 5).reshape(-1, self.inputs)
        weight = QuantizedWeight(values, scales, bits, minimums, zeros)
        return weight.dequantize()[: self.outputs].bfloat16()


def spread(x: Tensor) -> Tensor:
    """A copy of x [rows, inputs] whose rows lie an odd number of cache lines apart: see gemm.h."""
    rows, inputs = x.shape
    stride = (-(-inputs // PANEL_WIDTH) | 1) * PANEL_WIDTH
    return torch.empty(rows, stride)[:, :inputs].copy_(x)


def concatenate(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> PackedMatrix:
    """Several matrices of the same inputs as one, outputs side by side."""
    return PackedMatrix(torch.cat(list(weights)), join_biases(weights, biases))


def concatenate_quantized(
    weights: Sequence[QuantizedWeight], biases: Sequence[Tensor | None]
) -> QuantizedMatrix:
    """The same of quantized ones."""
    sizes = [weight.scales for weight in weights]
    return QuantizedMatrix(join(weights), join_biases(sizes, biases))


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


def _pack_quantized(weight: QuantizedWeight) -> Tensor:
    """Bytes [panels, groups, bytes of a group]; outputs that pad the last panel have no scale."""
    steps = 8 // weight.bits
    values = _padded(weight.values)
    # [panels, outputs, groups, units, steps, 4]
    units = values.view(-1, PANEL_WIDTH, weight.scales.shape[1], weight.bits, steps, 4)
    units = units.permute(0, 2, 3, 4, 1, 5)  # [panels, groups, units, steps, outputs, 4]
    bytes_ = units[:, :, :, 0] if steps == 1 else units[:, :, :, 0] | units[:, :, :, 1] << 4
    header = [
        _padded(array)
        .view(-1, PANEL_WIDTH, weight.scales.shape[1])
        .transpose(1, 2)
        .contiguous()
        .view(torch.uint8)
        for array in (weight.scales, weight.minimums, weight.zeros)
        if array is not None
    ]
    return torch.cat([*header, bytes_.flatten(2)], dim=-1).contiguous()
