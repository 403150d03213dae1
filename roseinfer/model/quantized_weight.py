"""A matrix of quantized numbers: their scales, zeros or minimums, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 32
SUPER_GROUP = 256

#: Weights that are converted at once: what lies between fits into a cache.
ROWS_SIZE = 1 << 18

#: Of the wide form: the inputs of a group, and those of it that share a factor.
WIDE_GROUP = 64
PART = 16


class Form(NamedTuple):
    """What matrices that become one have in common."""

    bits: int
    minimums: bool = False
    zeros: bool = False
    factors: bool = False
    wide: bool = False
    codes: bool = False


#: What a code of 4 bits stands for, twice: floats with a bit of a fraction and two of an exponent.
CODED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Weights [outputs, inputs]: scale times (value - zero), or scale times value plus minimum.

    With neither zeros nor minimums, all zeros are 2^(bits - 1). Scales and minimums are float16,
    for groups of 32 inputs. With factors they are for 256, and a group's own are multiples of
    them: such are the K types of GGUF files.

    The wide form is what `quantize_wide` makes: a scale for 64 inputs. Its weights of 4 bits have
    factors up to 15, for 16 inputs each. With codes a weight is its scale times what CODED says.
    """

    values: Tensor
    """uint8 [outputs, inputs], below 2^bits"""
    scales: Tensor
    """float16 [outputs, inputs / 32, 64 or 256]"""
    bits: int
    minimums: Tensor | None = None
    """float16 [outputs, inputs / 32 or 256]"""
    zeros: Tensor | None = None
    """uint8 [outputs, inputs / 32]"""
    scale_factors: Tensor | None = None
    """uint8 [outputs, inputs / 32] beside minimums, else [outputs, inputs / 16]: int8, in the
    wide form uint8"""
    minimum_factors: Tensor | None = None
    """uint8 [outputs, inputs / 32]"""
    wide: bool = False
    codes: bool = False

    def dequantize(self) -> Tensor:
        """Float32 [outputs, inputs]."""
        scales = _multiplied(self.scales, self.scale_factors)
        values = _decoded(self.values) if self.codes else self.values.float()
        groups = values.reshape(*scales.shape, -1)
        if self.minimums is None and not self.codes:
            middle = 1 << (self.bits - 1)
            groups -= middle if self.zeros is None else self.zeros.float()[..., None]
        groups *= scales[..., None]
        if self.minimums is not None:
            groups += _multiplied(self.minimums, self.minimum_factors)[..., None]
        return groups.flatten(1)

    @property
    def form(self) -> Form:
        return Form(
            self.bits,
            self.minimums is not None,
            self.zeros is not None,
            self.scale_factors is not None,
            self.wide,
            self.codes,
        )

    def take(self, rows: Tensor | slice) -> QuantizedWeight:
        """These rows, in this order."""
        return _map(lambda tensors: tensors[0][rows], [self])


@dataclass(frozen=True, slots=True)
class CompactWeight:
    """A quantized weight as it waits to be packed; if it is halved, two values lie in a byte."""

    _weight: QuantizedWeight
    """if it is halved with half of the columns, the upper bits of whose bytes are the other half"""
    _is_halved: bool = False

    @classmethod
    def of(cls, weight: QuantizedWeight) -> CompactWeight:
        if weight.bits == 8:
            return cls(weight)
        lower, upper = weight.values.chunk(2, dim=1)
        return cls(replace(weight, values=lower | upper << 4), True)

    @classmethod
    def join(cls, parts: Sequence[CompactWeight]) -> CompactWeight:
        """Several of the same inputs and form as one, outputs side by side."""
        return cls(join([part._weight for part in parts]), parts[0]._is_halved)

    @property
    def form(self) -> Form:
        return self._weight.form

    @property
    def shape(self) -> torch.Size:
        outputs, width = self._weight.values.shape
        return torch.Size((outputs, 2 * width if self._is_halved else width))

    @property
    def bits(self) -> float:
        """Of a number, with its part of the scales and of what else goes with them."""
        tensors = (getattr(self._weight, field.name) for field in fields(self._weight))
        stored = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
        return 8 * stored / self.shape.numel()

    def take(self, rows: Tensor | slice) -> CompactWeight:
        """These outputs, in this order."""
        return CompactWeight(self._weight.take(rows), self._is_halved)

    def whole(self) -> QuantizedWeight:
        if not self._is_halved:
            return self._weight
        halves = self._weight.values
        return replace(self._weight, values=torch.cat([halves & 15, halves >> 4], dim=1))

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[outputs, inputs]."""
        weights = torch.empty(self.shape, dtype=dtype)
        for rows, numbers in self.pieces():
            weights[rows] = numbers
        return weights

    def pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """What it stands for in float32, some rows at a time, and which ones."""
        outputs, inputs = self.shape
        rows_at_once = max(1, ROWS_SIZE // inputs)
        for begin in range(0, outputs, rows_at_once):
            rows = slice(begin, begin + rows_at_once)
            yield rows, self.take(rows).whole().dequantize()


def _decoded(codes: Tensor) -> Tensor:
    """Float32: what each of CODED stands for."""
    return torch.tensor(CODED).float().index_select(0, codes.int().flatten()).view(codes.shape)


def _multiplied(numbers: Tensor, factors: Tensor | None) -> Tensor:
    """Float32, one for each group."""
    if factors is None:
        return numbers.float()
    groups = factors.float().reshape(*numbers.shape, -1)
    return groups.mul_(numbers.float()[..., None]).flatten(1)


def _map(
    change: Callable[[list[Tensor]], Tensor], weights: Sequence[QuantizedWeight]
) -> QuantizedWeight:
    """One weight: `change` of the tensors of the same name of several in one form."""

    def changed(tensors: list[Tensor | None]) -> Tensor | None:
        present = [tensor for tensor in tensors if tensor is not None]
        return change(present) if present else None

    return QuantizedWeight(
        change([weight.values for weight in weights]),
        change([weight.scales for weight in weights]),
        weights[0].bits,
        changed([weight.minimums for weight in weights]),
        changed([weight.zeros for weight in weights]),
        changed([weight.scale_factors for weight in weights]),
        changed([weight.minimum_factors for weight in weights]),
        weights[0].wide,
        weights[0].codes,
    )


def join(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Several matrices of the same inputs and form as one, outputs side by side."""
    return _map(torch.cat, parts)
