"""The blocks of a GGUF file as matrices of the compiled decoder, number for number.

A block has 32 weights of an output. Those of one size lie together: scale, minimum if the type has
one, then the values, those of 4 bits with the first 16 in the lower halves of the bytes.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roseinfer.quantization import GROUP, QuantizedWeight

_logger = logging.getLogger(__name__)

_HALF = 2  # bytes of a scale


def stored_weights(path: Path, model: Any) -> dict[str, QuantizedWeight]:
    """The matrices of the file at `path` that can be kept, by the names of the parameters of
    `model`, which was loaded from it and is compared with them."""
    from gguf import GGUFReader
    from transformers import modeling_gguf_pytorch_utils as transformers_gguf

    reader = GGUFReader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    make = transformers_gguf.TENSOR_PROCESSORS.get(architecture, transformers_gguf.TensorProcessor)
    processor = make(config=model.config.to_dict())
    names = transformers_gguf.get_gguf_hf_weights_map(model, processor)
    parameters = dict(model.named_parameters())
    kept, left = {}, Counter[str]()
    for tensor in reader.tensors:
        parameter = parameters.get(names.get(tensor.name, ""))
        if parameter is None or parameter.dim() != 2:
            continue
        weight = _read(tensor)
        if weight is not None:
            weight = _rows_in_order(weight, tensor.name, processor)
        if weight is not None and is_same(weight, parameter):
            kept[names[tensor.name]] = weight
        else:
            left[tensor.tensor_type.name] += 1
    if left:
        described = ", ".join(f"{count} of {kind}" for kind, count in sorted(left.items()))
        _logger.info("%s: matrices that are not kept as they are: %s", path.name, described)
    return kept


def is_same(weight: QuantizedWeight, parameter: Tensor) -> bool:
    """Whether the numbers are those of `parameter`, in its dtype."""
    return weight.values.shape == parameter.shape and torch.equal(
        weight.dequantize().to(parameter.dtype), parameter.detach()
    )


def _read(tensor: Any) -> QuantizedWeight | None:
    """None for a type of blocks that has no counterpart."""
    kind = tensor.tensor_type.name
    rows = int(tensor.shape[1])
    # [outputs, groups, bytes of a block]
    if kind not in _BLOCKS:
        return None
    blocks = torch.from_numpy(tensor.data.reshape(rows, int(tensor.shape[0]) // GROUP, -1).copy())
    return _BLOCKS[kind](blocks)


def _q8_0(blocks: Tensor) -> QuantizedWeight:
    values = blocks[..., _HALF:] ^ 0x80  # signed, and 128 more
    return QuantizedWeight(values.flatten(1), _halves(blocks, 0), 8)


def _q4_0(blocks: Tensor) -> QuantizedWeight:
    return QuantizedWeight(_four_bits(blocks[..., _HALF:]), _halves(blocks, 0), 4)


def _q4_1(blocks: Tensor) -> QuantizedWeight:
    values = _four_bits(blocks[..., 2 * _HALF :])
    return QuantizedWeight(values, _halves(blocks, 0), 4, minimums=_halves(blocks, 1))


def _q5_0(blocks: Tensor) -> QuantizedWeight:
    values = _five_bits(blocks[..., _HALF:]) + (128 - 16)
    return QuantizedWeight(values, _halves(blocks, 0), 8)


def _q5_1(blocks: Tensor) -> QuantizedWeight:
    values = _five_bits(blocks[..., 2 * _HALF :])
    return QuantizedWeight(values, _halves(blocks, 0), 8, minimums=_halves(blocks, 1))


_BLOCKS = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1}


def _halves(blocks: Tensor, index: int) -> Tensor:
    """The 16-bit number `index` of each block: [outputs, groups]."""
    begin = index * _HALF
    return blocks[..., begin : begin + _HALF].contiguous().view(torch.float16).squeeze(-1)


def _four_bits(bytes_: Tensor) -> Tensor:
    """[outputs, groups, 16] to [outputs, inputs]."""
    return torch.cat([bytes_ & 15, bytes_ >> 4], dim=-1).flatten(1)


def _five_bits(bytes_: Tensor) -> Tensor:
    """Four bytes with the upper bits of a block, then the lower ones."""
    places = torch.arange(8, dtype=torch.uint8)
    upper = (bytes_[..., :4, None] >> places & 1).flatten(-2)
    return _four_bits(bytes_[..., 4:]) | (upper << 4).flatten(1)


def _rows_in_order(weight: QuantizedWeight, name: str, processor: Any) -> QuantizedWeight:
    """As transformers has them: llama.cpp pairs the rows of some families in another way."""
    rows = torch.arange(len(weight.values))[:, None].numpy()
    order = torch.from_numpy(processor.process(rows, name).weights[:, 0].copy())
    return weight if torch.equal(order, order.sort().values) else weight.take(order)
