"""Weights as the compiled products read them: panels of 16 outputs (see tiles.h, quantized.h)."""

import ctypes
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.model.linears import join_biases
from roseinfer.model.quantized_weight import GROUP, Form, QuantizedWeight, join
from roseinfer.native.huge_pages import HugePages
from roseinfer.native.library import PANEL_WIDTH, Matrix, WeightType, library

#: Rows are rounded up to these where they are multiplied on AMX tiles.
_TILE_ROWS = 16
_TYPES = {torch.float32: WeightType.FLOAT32, torch.bfloat16: WeightType.BFLOAT16}
QUANTIZED_TYPES = {
    Form(8): WeightType.INT8,
    Form(4): WeightType.INT4,
    Form(8, minimums=True): WeightType.INT8_MINIMUM,
    Form(4, minimums=True): WeightType.INT4_MINIMUM,
    Form(8, zeros=True): WeightType.INT8_ZERO,
    Form(4, zeros=True): WeightType.INT4_ZERO,
    Form(4, minimums=True, factors=True): WeightType.Q4_K,
    Form(8, minimums=True, factors=True): WeightType.Q5_K,
    Form(8, factors=True): WeightType.Q6_K,
    Form(8, wide=True): WeightType.WIDE_INT8,
    Form(4, factors=True, wide=True): WeightType.WIDE_INT4,
    Form(4, codes=True): WeightType.CODES,
}


class AnyMatrix(Protocol):
    outputs: int
    inputs: int

    @property
    def struct(self) -> Matrix: ...

    def move(self, pages: HugePages) -> None: ...

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
            None,
            self.outputs,
            self.inputs,
            self._type,
        )

    def move(self, pages: HugePages) -> None:
        """To other memory; a `struct` made before is no longer valid."""
        self.panels = pages.place(self.panels)

    def multiply(self, x: Tensor) -> Tensor:
        """x [rows, inputs], float32, times the weights transposed: [rows, outputs].

        Where the build multiplies pairs of bfloat16, x is rounded to the weights' type; beside
        quantized weights to 8 bits in groups.
        """
        out = torch.empty(len(x), self.outputs)
        rows, scratch = spread(x), self.scratch(len(x))
        self.prepare(rows, scratch)
        self.multiply_prepared(out, rows, scratch)
        return out

    def prepare(self, x: Tensor, scratch: Tensor) -> None:
        """Bring x to the form that the product reads; its rows may lie apart. x is used up."""
        library().rose_prepare(self.struct, *_rows(x), scratch.data_ptr())

    def multiply_prepared(self, out: Tensor, x: Tensor, scratch: Tensor) -> None:
        """The product into `out` [rows, outputs], float32."""
        library().rose_multiply(self.struct, *_rows(x), scratch.data_ptr(), out.data_ptr())

    def scratch(self, rows: int) -> Tensor:
        """Room for x in the form that the product reads."""
        return torch.empty(-(-rows // _TILE_ROWS) * _TILE_ROWS, self.inputs)


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
        kind = QUANTIZED_TYPES[weight.form]
        super().__init__(_pack_quantized(weight), (rows, inputs), kind, bias)
        self._form = weight.form

    def unpack(self) -> Tensor:
        """The weights [outputs, inputs] that the numbers stand for, in bfloat16."""
        form, groups = self._form, self.inputs // GROUP
        rest = self.panels

        def array(dtype: torch.dtype, parts: int = 1) -> Tensor:
            """The next of a header: [outputs, groups or super-blocks]."""
            nonlocal rest
            size = dtype.itemsize * parts * PANEL_WIDTH
            taken, rest = rest[..., :size].contiguous().view(dtype), rest[..., size:]
            arrays = taken.view(*taken.shape[:2], parts, PANEL_WIDTH)
            return arrays.permute(0, 3, 1, 2).reshape(-1, taken.shape[1] * parts)

        scales = array(torch.float16)
        minimums = array(torch.float16) if form.minimums else None
        factors: list[Tensor | None] = [None, None]
        if form.factors and form.wide:
            factors[0] = _unpack_factors(array(torch.int16))
        rest = rest.reshape(len(rest), groups, -1)
        zeros = array(torch.uint8) if form.zeros else None
        if form.factors and form.minimums:
            factors = [array(torch.uint8), array(torch.uint8)]
        elif form.factors and not form.wide:
            factors[0] = array(torch.int8, 2)
        units = rest.reshape(-1, groups, form.bits, 1, PANEL_WIDTH, 4)
        halves = units if form.bits == 8 else torch.cat([units & 15, units >> 4], dim=3)
        # [panels, groups, units, steps, outputs, 4]
        values = halves.permute(0, 4, 1, 2, 3, 5).reshape(-1, self.inputs)
        weight = QuantizedWeight(
            values,
            scales,
            form.bits,
            minimums,
            zeros,
            factors[0],
            factors[1],
            wide=form.wide,
            codes=form.codes,
        )
        return weight.dequantize()[: self.outputs].bfloat16()


class SideBySide:
    """The outputs of several quantized matrices of the same inputs, one after the other."""

    def __init__(self, matrices: Sequence[QuantizedMatrix]) -> None:
        self._matrices = matrices
        self._structs = self._link()
        self.outputs = sum(matrix.outputs for matrix in matrices)
        self.inputs = matrices[0].inputs

    def _link(self) -> list[Matrix]:
        structs = [matrix.struct for matrix in self._matrices]
        for struct, following in pairwise(structs):
            struct.next = ctypes.addressof(following)
        return structs

    def move(self, pages: HugePages) -> None:
        """To other memory; a `struct` taken before is no longer valid."""
        for matrix in self._matrices:
            matrix.move(pages)
        self._structs = self._link()

    @property
    def struct(self) -> Matrix:
        """For the library; valid as long as this object lives."""
        return self._structs[0]

    def unpack(self) -> Tensor:
        return torch.cat([matrix.unpack() for matrix in self._matrices])


def spread(x: Tensor) -> Tensor:
    """A copy of x [rows, inputs], its rows an odd number of cache lines apart: see matmul.h."""
    rows, inputs = x.shape
    stride = (-(-inputs // PANEL_WIDTH) | 1) * PANEL_WIDTH
    return torch.empty(rows, stride)[:, :inputs].copy_(x)


def concatenate(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> PackedMatrix:
    """Several matrices of the same inputs as one, outputs side by side."""
    return PackedMatrix(torch.cat(list(weights)), join_biases(weights, biases))


def concatenate_quantized(
    weights: Sequence[QuantizedWeight], biases: Sequence[Tensor | None]
) -> QuantizedMatrix | SideBySide:
    """The same of quantized ones; neighbours of the same form become one matrix."""
    matrices = []
    pairs = zip(weights, biases, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].form):
        alike, own = zip(*group, strict=True)
        bias = join_biases([weight.scales for weight in alike], own)
        matrices.append(QuantizedMatrix(join(alike), bias))
    return matrices[0] if len(matrices) == 1 else SideBySide(matrices)


def _rows(x: Tensor) -> tuple[int, int, int]:
    return x.data_ptr(), x.stride(0), len(x)


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
    """Bytes [panels, groups or super-blocks, bytes of one]; outputs that pad the last panel have no
    scale."""
    steps, groups = 8 // weight.bits, weight.values.shape[1] // GROUP
    values = _padded(weight.values)
    # [panels, outputs, groups, units, steps, 4]
    units = values.view(-1, PANEL_WIDTH, groups, weight.bits, steps, 4)
    units = units.permute(0, 2, 3, 4, 1, 5)  # [panels, groups, units, steps, outputs, 4]
    bytes_ = units[:, :, :, 0] if steps == 1 else units[:, :, :, 0] | units[:, :, :, 1] << 4

    def header(arrays: Iterable[Tensor | None], count: int) -> list[Tensor]:
        """For each of `count` groups or super-blocks."""
        return [
            _padded(array)
            .view(-1, PANEL_WIDTH, count, array.shape[1] // count)
            .permute(0, 2, 3, 1)
            .flatten(2)
            .contiguous()
            .view(torch.uint8)
            for array in arrays
            if array is not None
        ]

    factors, packed = weight.scale_factors, None
    if weight.wide and factors is not None:
        packed, factors = _pack_factors(factors), None
    numbers = header((weight.zeros, factors, weight.minimum_factors), groups)
    blocks = torch.cat([*numbers, bytes_.flatten(2)], dim=-1)
    count = weight.scales.shape[1]
    halves = header((weight.scales, weight.minimums, packed), count)
    return torch.cat([*halves, blocks.view(len(blocks), count, -1)], dim=-1).contiguous()


def _pack_factors(factors: Tensor) -> Tensor:
    """Int16 [outputs, groups]: of each group's four parts 4 bits, those of the first lowest."""
    return (factors[:, 0::2] | factors[:, 1::2] << 4).contiguous().view(torch.int16)


def _unpack_factors(packed: Tensor) -> Tensor:
    # Not `contiguous`: a single column is that whatever lies between its rows.
    two = packed.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return torch.stack([two & 15, two >> 4], dim=-1).flatten(1)
