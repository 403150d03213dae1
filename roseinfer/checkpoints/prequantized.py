"""Pre-quantized checkpoints of safetensors, number for number: GPTQ, AWQ, compressed-tensors and
MXFP4.

Numbers of 4 or 8 bits lie n to an int32, the lowest bits first. A weight is its group's scale times
(number - zero). A module has instead of `weight`:

    GPTQ                 qweight        [inputs / n, outputs]    scales        [groups, outputs]
                         qzeros         [groups, outputs / n]    g_idx         [inputs]
    AWQ                  qweight        [inputs, outputs / n]    scales        [groups, outputs]
                         qzeros         [groups, outputs / n]
    compressed-tensors   weight_packed  [outputs, inputs / n]    weight_scale  [outputs, groups]
                         weight_zero_point [outputs / n, groups] weight_shape  [2]

MXFP4, which gpt-oss has, is of experts: instead of a parameter [experts, inputs, outputs] there are

    name_blocks   [experts, outputs, groups, 16]   name_scales   [experts, outputs, groups]

Two inputs lie in a byte, the first one lower: codes of floats of 4 bits (quantized_weight.CODED).
A scale is two to the power of its byte less 127.

GPTQ stores zeros less one, unless its checkpoint_format is gptq_v2; AWQ has eight outputs of an
int32 in the order 0 2 4 6 1 3 5 7; compressed-tensors leaves out zeros in the middle of the range.
Group g has the inputs from g * group_size on; where GPTQ or compressed-tensors have ordered inputs
by activation, another group, and such a checkpoint is refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.lazy_tensor import LazyTensor
from roseinfer.checkpoints.scaled_weights import ScaledWeight
from roseinfer.model.quantized_weight import GROUP, CompactWeight, QuantizedWeight

_EXPERT = re.compile(
    r"(?P<experts>.+\.experts)\.(?P<number>\d+)\.(?P<matrix>gate_proj|up_proj|down_proj)\.weight"
)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

ModuleTensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a checkpoint keeps a matrix."""

    packed: str
    """the tensor that stands for `weight`"""
    others: tuple[str, ...]
    read: Callable[[ModuleTensors], QuantizedWeight]
    bits: int
    separator: str = "."
    """between the name and these"""
    weight: str = ".weight"
    """what the parameter's name ends with"""
    stacks: bool = False
    """experts [experts, outputs, ...], read one by one: a parameter [experts, inputs, outputs]"""


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A quantized matrix as it lies in the files, which is read when it is asked for."""

    module: str
    parts: ModuleTensors
    layout: Layout

    @property
    def numbers(self) -> int:
        """About so many: of some layouts padding counts."""
        return self.parts[self.layout.packed].nbytes * 8 // self.layout.bits

    def compact(self) -> CompactWeight:
        """Number for number, those of experts one behind the other. Raises UnsupportedModel."""
        return CompactWeight.join([CompactWeight.of(matrix) for matrix in self._matrices()])

    def plain(self, dtype: torch.dtype) -> Tensor:
        """What it stands for, as the parameter has it. Raises UnsupportedModel."""
        matrices = (CompactWeight(matrix).dequantize(dtype) for matrix in self._matrices())
        if not self.layout.stacks:
            return next(matrices)
        first = next(matrices)
        experts = first.new_empty(len(self.parts[self.layout.packed]), *first.T.shape)
        for expert, matrix in zip(experts, chain([first], matrices), strict=True):
            expert.copy_(matrix.T)
        return experts

    def _matrices(self) -> Iterator[QuantizedWeight]:
        """One, or those of the experts."""
        read, each = self.layout.read, [self.parts]
        try:
            if self.layout.stacks:
                by_expert = zip(*self.parts.values(), strict=True)
                each = [dict(zip(self.parts, own, strict=True)) for own in by_expert]
            yield from map(read, each)
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise UnsupportedModel(
                f"the quantized matrix {self.module!r} cannot be read: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class Split:
    """A checkpoint's tensors: those that are plain, and others by their `weight`."""

    plain: dict[str, Tensor]
    quantized: dict[str, StoredMatrix] = field(default_factory=dict)
    scaled: Mapping[str, ScaledWeight] = field(default_factory=dict)

    def state_dict(self, dtype: torch.dtype) -> dict[str, Tensor | LazyTensor]:
        """All of it. What is not plain becomes what it stands for, in `dtype`, when it is read:
        that raises UnsupportedModel for scales that do not fit their weights."""
        others: dict[str, StoredMatrix | ScaledWeight] = {**self.quantized, **self.scaled}
        lazy = {
            name: LazyTensor(partial(own.plain, dtype), own.numbers) for name, own in others.items()
        }
        return {**self.plain, **lazy}

    def stored(self) -> dict[str, Callable[[Tensor], CompactWeight | None]]:
        """Quantized matrices by the parameters that transformers makes of them: those of a layer's
        experts, which checkpoints have one by one, as one, gates before what they multiply. None of
        it is read before it is called. Those of several forms are None: they cannot be one."""
        return {name: partial(_join, matrices) for name, matrices in self._by_parameter().items()}

    def bits(self) -> dict[str, float]:
        """Of a number that is kept, with its part of the scales, by the same names."""
        by_parameter = self._by_parameter().items()
        return {name: matrices[0].layout.bits + 0.5 for name, matrices in by_parameter}

    def _by_parameter(self) -> dict[str, list[StoredMatrix]]:
        stored: dict[str, list[tuple[tuple[int, str], StoredMatrix]]] = {}
        for name, matrix in self.quantized.items():
            if (found := _EXPERT.fullmatch(name)) is None:
                stored[name] = [((0, ""), matrix)]
                continue
            together = "down_proj" if found["matrix"] == "down_proj" else "gate_up_proj"
            own = stored.setdefault(f"{found['experts']}.{together}", [])
            own.append(((int(found["number"]), found["matrix"]), matrix))
        return {  # "gate_proj" before "up_proj"
            name: [matrix for _, matrix in sorted(own, key=itemgetter(0))]
            for name, own in stored.items()
        }


def _join(matrices: Sequence[StoredMatrix], _parameter: Tensor) -> CompactWeight | None:
    weights = [matrix.compact() for matrix in matrices]
    return CompactWeight.join(weights) if len({weight.form for weight in weights}) == 1 else None


def find_layout(config: Mapping[str, Any]) -> Layout | None:
    """What a `quantization_config` describes; None for a method that is none of these.

    Raises UnsupportedModel: says which field is in the way, and what can be had instead.
    """
    make = _LAYOUTS.get(str(config.get("quant_method")))
    return None if make is None else make(config)


def split(tensors: Mapping[str, Tensor], layout: Layout) -> Split:
    """The quantized matrices are only found here: they are read one by one."""
    plain, quantized = dict(tensors), {}
    for name in tensors:
        module, _, last = name.rpartition(layout.separator)
        if last != layout.packed:
            continue
        names = {
            part: f"{module}{layout.separator}{part}" for part in (layout.packed, *layout.others)
        }
        parts = {part: plain.pop(full) for part, full in names.items() if full in plain}
        quantized[module + layout.weight] = StoredMatrix(module, parts, layout)
    return Split(plain, quantized)


def _refusal(field: str, value: object, known: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"the checkpoint's quantization_config has {field}={value!r}, of which {known} can be "
        "read: use the model's plain checkpoint, with weights='int4' or 'int8' if it must be small"
    )


def _check(config: Mapping[str, Any], field: str, known: tuple[object, ...]) -> None:
    """A field that is missing is not in the way."""
    if field in config and config[field] not in known:
        raise _refusal(field, config[field], ", ".join(map(repr, known)))


# What the methods' configurations say


def _gptq(config: Mapping[str, Any]) -> Layout:
    _check(config, "bits", (4, 8))
    _check(config, "desc_act", (False,))
    _check(config, "checkpoint_format", ("gptq", "gptq_v2"))
    _check(config, "dynamic", (None, {}))  # other bits for some modules
    _check_group(config.get("group_size", -1))
    bits = int(config.get("bits", 4))
    zero_offset = 0 if config.get("checkpoint_format") == "gptq_v2" else 1

    def read(tensors: ModuleTensors) -> QuantizedWeight:
        values = _unpack(tensors["qweight"].T, bits)
        zeros = _unpack(tensors["qzeros"], bits).T + zero_offset & (1 << bits) - 1
        weight = _weight(values, tensors["scales"].T, zeros, bits)
        _check_order(tensors.get("g_idx"), values.shape[1], len(tensors["scales"]))
        return weight

    return Layout("qweight", ("qzeros", "scales", "g_idx"), read, bits)


def _awq(config: Mapping[str, Any]) -> Layout:
    _check(config, "bits", (4,))
    _check(config, "version", ("gemm",))
    _check(config, "zero_point", (True,))
    _check_group(config.get("group_size", 128))

    def read(tensors: ModuleTensors) -> QuantizedWeight:
        values, zeros = (_in_output_order(tensors[name]).T for name in ("qweight", "qzeros"))
        return _weight(values, tensors["scales"].T, zeros, 4)

    return Layout("qweight", ("qzeros", "scales"), read, 4)


def _compressed_tensors(config: Mapping[str, Any]) -> Layout:
    _check(config, "format", ("pack-quantized",))
    _check(config, "kv_cache_scheme", (None,))
    _check(config, "sparsity_config", (None, {}))
    _check(config, "transform_config", (None, {}))
    schemes = list(config.get("config_groups", {}).values())
    if len(schemes) != 1:
        raise _refusal("config_groups", list(config.get("config_groups", {})), "one group")
    for activations in ("input_activations", "output_activations"):
        _check(schemes[0], activations, (None,))
    weights = schemes[0].get("weights") or {}
    _check(weights, "type", ("int",))
    _check(weights, "num_bits", (4, 8))
    _check(weights, "strategy", ("group", "channel"))
    _check(weights, "actorder", (None, "weight", "static"))  # these are over once it is stored
    _check_group(weights.get("group_size") or -1)
    bits = int(weights.get("num_bits", 8))

    def read(tensors: ModuleTensors) -> QuantizedWeight:
        rows, inputs = (int(size) for size in tensors["weight_shape"])
        values = _unpack(tensors["weight_packed"], bits)[:, :inputs]
        scales, packed = tensors["weight_scale"], tensors.get("weight_zero_point")
        zeros = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.uint8)
        if packed is not None:
            zeros = _unpack(packed.T, bits).T[:rows]
        return _weight(values, scales, zeros, bits)

    others = ("weight_scale", "weight_zero_point", "weight_shape")
    return Layout("weight_packed", others, read, bits)


def _mxfp4(_config: Mapping[str, Any]) -> Layout:
    def read(tensors: ModuleTensors) -> QuantizedWeight:
        blocks, exponents = tensors["blocks"], tensors["scales"]
        if blocks.shape != (*exponents.shape, GROUP // 2) or blocks.dtype != torch.uint8:
            raise ValueError(
                f"its blocks are {blocks.dtype} {tuple(blocks.shape)}, its scales "
                f"{tuple(exponents.shape)}"
            )
        values = torch.stack([blocks & 15, blocks >> 4], dim=-1)
        # Codes stand for twice the floats. Of the powers of two float16 has these.
        powers = exponents.int() - 128
        if int(powers.min()) < -24 or int(powers.max()) > 15:
            raise ValueError("a scale is beyond the range of float16")
        scales = torch.ldexp(torch.ones(powers.shape), powers).half()
        return QuantizedWeight(values.flatten(1), scales, 4, codes=True)

    return Layout("blocks", ("scales",), read, 4, separator="_", weight="", stacks=True)


_LAYOUTS: dict[str, Callable[[Mapping[str, Any]], Layout]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "mxfp4": _mxfp4,
}


def _check_group(size: int) -> None:
    if size != -1 and (size < GROUP or size % GROUP):
        raise _refusal("group_size", size, f"-1 and multiples of {GROUP}")


# Numbers


def _unpack(packed: Tensor, bits: int) -> Tensor:
    """int32 [rows, columns] to uint8 [rows, columns * 32 / bits]."""
    if packed.dtype != torch.int32:
        raise ValueError(f"its numbers are packed into {packed.dtype}, not int32")
    bytes_ = packed.contiguous().view(torch.uint8)
    if bits == 8:
        return bytes_
    return torch.stack([bytes_ & 15, bytes_ >> 4], dim=-1).flatten(1)


def _in_output_order(packed: Tensor) -> Tensor:
    eights = _unpack(packed, 4).reshape(len(packed), -1, 8)
    return eights[..., torch.tensor(_AWQ_ORDER).argsort()].flatten(1)


def _check_order(groups: Tensor | None, inputs: int, count: int) -> None:
    """`groups` [inputs]: the group of each, of `count`."""
    if groups is not None and not torch.equal(groups, torch.arange(inputs).int() * count // inputs):
        raise ValueError("its inputs are ordered by activation (g_idx): quantize without desc_act")


def _weight(values: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> QuantizedWeight:
    """Groups of any multiple of 32 as groups of 32. `scales` and `zeros` are [outputs, groups]."""
    rows, inputs = values.shape
    groups = scales.shape[1]
    if scales.shape != zeros.shape or len(scales) != rows or inputs % (groups * GROUP):
        raise ValueError(
            f"{rows} outputs of {inputs} inputs have {tuple(scales.shape)} scales and "
            f"{tuple(zeros.shape)} zeros, in groups that are no multiple of {GROUP} inputs"
        )
    float16_scales = scales.half()
    if not torch.equal(float16_scales.float(), scales.float()):
        raise ValueError(f"a {scales.dtype} scale is beyond the range of float16")
    repeats = inputs // groups // GROUP
    middle = bool((zeros == 1 << (bits - 1)).all())
    return QuantizedWeight(
        values.contiguous(),
        float16_scales.repeat_interleave(repeats, 1),
        bits,
        zeros=None if middle else zeros.repeat_interleave(repeats, 1),
    )
