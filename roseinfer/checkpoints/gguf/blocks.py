"""The blocks of a GGUF file as matrices of the compiled decoder, number for number.

A block has 32 weights of an output. Those of one size lie together: scale, minimum if the type has
one, then the values, those of 4 bits with the first 16 in the lower halves of the bytes. Blocks of
K types have 256 weights, with a scale for all and factors of it for 32 or 16.

Experts of a layer are one tensor; their gates and what these multiply are two, and one parameter.
"""

import logging
from collections import Counter
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.gguf.layouts import Layout, Source, side_by_side
from roseinfer.model.quantization import FROM_FILE
from roseinfer.model.quantized_weight import GROUP, SUPER_GROUP, CompactWeight, QuantizedWeight

_logger = logging.getLogger(__name__)

_FLOAT16_BYTES = 2  # bytes of a scale


class StoredBlocks:
    """The matrices of the file at `path` that can be kept, each read when it is asked for. `layout`
    is the file's own; None where transformers reads it."""

    def __init__(self, path: Path, layout: Layout | None) -> None:
        self._path, self._layout = path, layout
        self._kept = 0
        self._left = Counter[str]()

    def find(self, model: Any) -> dict[str, Callable[[Tensor], CompactWeight | None]]:
        """By the names of the parameters of `model`, which need no numbers yet. Each is compared
        with what was loaded from the file."""
        return {
            name: partial(self._keep, source, tensors)
            for name, (source, tensors) in self._sources(model).items()
        }

    def bits(self, model: Any) -> dict[str, float]:
        """Of a number that is kept, with its part of the scales, by the same names."""
        kept = {}
        for name, (source, tensors) in self._sources(model).items():
            kinds = {tensor.tensor_type.name for tensor in tensors}
            row = _read(tensors[0], slice(1))
            if source.moves_rows and len(kinds) == 1 and row is not None:
                kept[name] = row.bits
        return kept

    @cached_property
    def _reader(self) -> Any:
        from gguf import GGUFReader

        return GGUFReader(self._path)

    def _sources(self, model: Any) -> dict[str, tuple[Source, list[Any]]]:
        layout = self._layout
        sources = _of_transformers(self._reader, model) if layout is None else layout.sources
        tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        return {
            name: (source, [tensors[own] for own in source.names])
            for name, source in sources.items()
        }

    def check(self) -> None:
        """Raises UnsupportedModel if nothing was kept; the log says what was not."""
        described = ", ".join(f"{count} of {kind}" for kind, count in sorted(self._left.items()))
        if not self._kept:
            raise UnsupportedModel(
                f"weights={FROM_FILE!r} keeps matrices of {', '.join(_BLOCKS)}, and "
                f"{self._path.name} has none, but {described or 'no matrices of layers'}: leave "
                "weights out, or choose int8 or int4"
            )
        if described:
            _logger.info(
                "%s: matrices that are not kept as they are: %s", self._path.name, described
            )

    def _keep(self, source: Source, tensors: list[Any], parameter: Tensor) -> CompactWeight | None:
        shapes = [tensor.shape[::-1].tolist() for tensor in tensors]
        weight = source.keep([_read(tensor) for tensor in tensors], shapes)
        if weight is not None and is_same(weight, parameter):
            self._kept += 1
            return weight
        self._left.update(tensor.tensor_type.name for tensor in tensors)
        return None


def _of_transformers(reader: Any, model: Any) -> dict[str, Source]:
    """What transformers makes of the file; it pairs the rows of some families in another way."""
    from transformers import modeling_gguf_pytorch_utils as transformers_gguf

    architecture = str(reader.fields["general.architecture"].contents())
    make = transformers_gguf.TENSOR_PROCESSORS.get(architecture, transformers_gguf.TensorProcessor)
    processor = make(config=model.config.to_dict())
    parameters = transformers_gguf.get_gguf_hf_weights_map(model, processor)
    names: dict[str, list[str]] = {}
    for name in sorted(tensor.name for tensor in reader.tensors):  # gates before "up"
        # Its table has those of experts without the ending.
        parameter = parameters.get(name) or parameters.get(name.removesuffix(".weight"))
        names.setdefault(parameter or "", []).append(name)

    def in_order(name: str, rows: Tensor) -> Tensor:
        return torch.from_numpy(processor.process(rows.numpy(), name).weights.copy())

    return {
        parameter: Source(tuple(own), side_by_side if own[1:] else partial(in_order, own[0]))
        for parameter, own in names.items()
    }


def is_same(weight: CompactWeight, parameter: Tensor) -> bool:
    """Whether the numbers are those of `parameter`, in its dtype."""
    plain = parameter.flatten(0, -2)
    return weight.shape == plain.shape and all(
        torch.equal(numbers.to(plain.dtype), plain[rows]) for rows, numbers in weight.pieces()
    )


def _read(tensor: Any, rows: slice = slice(None)) -> CompactWeight | None:
    """These rows of it; None for a type of blocks that has no counterpart."""
    kind = tensor.tensor_type.name
    if kind not in _BLOCKS:
        return None
    size = SUPER_GROUP if kind.endswith("_K") else GROUP
    shape = (int(tensor.shape[1:].prod()), int(tensor.shape[0]) // size, -1)
    blocks = torch.from_numpy(tensor.data.reshape(shape)[rows].copy())
    return CompactWeight.of(_BLOCKS[kind](blocks))


def _q8_0(blocks: Tensor) -> QuantizedWeight:
    values = blocks[..., _FLOAT16_BYTES:] ^ 0x80  # signed, and 128 more
    return QuantizedWeight(values.flatten(1), _float16s(blocks, 0), 8)


def _q4_0(blocks: Tensor) -> QuantizedWeight:
    return QuantizedWeight(_four_bits(blocks[..., _FLOAT16_BYTES:]), _float16s(blocks, 0), 4)


def _q4_1(blocks: Tensor) -> QuantizedWeight:
    values = _four_bits(blocks[..., 2 * _FLOAT16_BYTES :])
    return QuantizedWeight(values, _float16s(blocks, 0), 4, minimums=_float16s(blocks, 1))


def _q5_0(blocks: Tensor) -> QuantizedWeight:
    values = _five_bits(blocks[..., _FLOAT16_BYTES:]) + (128 - 16)
    return QuantizedWeight(values, _float16s(blocks, 0), 8)


def _q5_1(blocks: Tensor) -> QuantizedWeight:
    values = _five_bits(blocks[..., 2 * _FLOAT16_BYTES :])
    return QuantizedWeight(values, _float16s(blocks, 0), 8, minimums=_float16s(blocks, 1))


def _q4_k(blocks: Tensor) -> QuantizedWeight:
    return _with_k_scales(blocks, _k_nibbles(blocks[..., 16:], 32), 4)


def _q5_k(blocks: Tensor) -> QuantizedWeight:
    upper = _k_bits(blocks[..., 16:48], 1)
    return _with_k_scales(blocks, _k_nibbles(blocks[..., 48:], 32) | upper << 4, 8)


def _q6_k(blocks: Tensor) -> QuantizedWeight:
    values = _k_nibbles(blocks[..., :128], 64) | _k_bits(blocks[..., 128:192], 2) << 4
    return QuantizedWeight(
        values + (128 - 32),
        _float16s(blocks, 104),
        8,
        scale_factors=blocks[..., 192:208].flatten(1).view(torch.int8),
    )


# Each takes [outputs, groups, bytes of a block].
_BLOCKS = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def _float16s(blocks: Tensor, index: int) -> Tensor:
    """The 16-bit number `index` of each block: [outputs, groups]."""
    begin = index * _FLOAT16_BYTES
    return blocks[..., begin : begin + _FLOAT16_BYTES].contiguous().view(torch.float16).squeeze(-1)


def _four_bits(bytes_: Tensor) -> Tensor:
    """[outputs, groups, 16] to [outputs, inputs]."""
    return torch.cat([bytes_ & 15, bytes_ >> 4], dim=-1).flatten(1)


def _five_bits(bytes_: Tensor) -> Tensor:
    """Four bytes with the upper bits of a block, then the lower ones."""
    shifts = torch.arange(8, dtype=torch.uint8)
    upper = (bytes_[..., :4, None] >> shifts & 1).flatten(-2)
    return _four_bits(bytes_[..., 4:]) | (upper << 4).flatten(1)


def _k_nibbles(bytes_: Tensor, run: int) -> Tensor:
    """[outputs, groups, 128] to [outputs, inputs]: of `run` bytes the lower halves, then the upper
    ones."""
    runs = bytes_.reshape(*bytes_.shape[:-1], -1, run)
    return torch.cat([runs & 15, runs >> 4], dim=-1).flatten(1)


def _k_bits(bytes_: Tensor, bits: int) -> Tensor:
    """[outputs, groups, 32 * bits] to [outputs, inputs]: of 32 bytes the lowest `bits` bits, then
    the next ones."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    runs = bytes_.reshape(*bytes_.shape[:-1], -1, 1, 32)
    return (runs >> shifts & (1 << bits) - 1).flatten(1)


def _with_k_scales(blocks: Tensor, values: Tensor, bits: int) -> QuantizedWeight:
    """A scale, a scale of the minimums, which are subtracted, and 6 bits of factors for both: 4
    bytes with those of the first groups' scales, 4 with those of their minimums, in 4 the lower
    bits of the last groups' scales and minimums, whose upper bits lie above the first ones'."""
    scales, minimums, last = blocks[..., 4:16].reshape(*blocks.shape[:-1], 3, 4).unbind(-2)
    scale_factors = torch.cat([scales & 63, last & 15 | scales >> 2 & 48], dim=-1)
    minimum_factors = torch.cat([minimums & 63, last >> 4 | minimums >> 2 & 48], dim=-1)
    return QuantizedWeight(
        values,
        _float16s(blocks, 0),
        bits,
        minimums=-_float16s(blocks, 1),
        scale_factors=scale_factors.flatten(1),
        minimum_factors=minimum_factors.flatten(1),
    )
