"""Weights of 8 bits beside scales, as bfloat16 and float32 can have them: a multiplication.

    weight        [outputs, inputs], or experts before these: float8, or int8
    its scale     weight_scale_inv or weight_scale: one, one for each output, or one for a block

FP8 of DeepSeek's kind, of fbgemm, of ModelOpt and of compressed-tensors, whose int-quantized is the
same with integers. Scales of activations and of KV caches are left out: neither is rounded here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rose.errors import UnsupportedModel
from roseinfer.model.quantized_weight import ROWS_SIZE

_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
_SCALES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu)
_SUFFIXES = ("_scale_inv", "_scale")
_NOT_OF_WEIGHTS = (
    *("input_scale", "activation_scale", "input_scale_ub", "output_scale"),
    *("q_scale", "k_scale", "v_scale", "kv_scale", "prob_scale"),
)
_CHANNELS = ("tensor", "channel", "block", None)
_MODELOPT_BLOCKS = {"FP8": None, "FP8_PER_CHANNEL_PER_TOKEN": None, "FP8_PB_WO": (128, 128)}


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a checkpoint's weights are multiplied by."""

    block: tuple[int, int] | None = None
    """outputs and inputs of a scale"""
    integers: bool = False


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A weight as it lies in the files, which is read when it is asked for."""

    name: str
    values: Tensor
    scales: Tensor
    block: tuple[int, int] | None

    @property
    def numbers(self) -> int:
        return self.values.numel()

    def plain(self, dtype: torch.dtype) -> Tensor:
        """What it stands for, some rows at a time. Raises UnsupportedModel for scales that do not
        fit."""
        scales, sizes = self._broadcastable()
        plain = torch.empty(self.values.shape, dtype=dtype)
        if plain.dim() < 2:
            return plain.copy_(self.values.float() * scales)
        shape = plain.shape[-2:]
        scales = scales.expand(*plain.shape[:-2], -1, -1).reshape(-1, *scales.shape[-2:])
        rows_at_once = sizes[0] * max(1, ROWS_SIZE // (sizes[0] * shape[1]))
        for whole, values, own in zip(
            plain.view(-1, *shape), self.values.view(-1, *shape), scales, strict=True
        ):
            by_column = _repeat(own, sizes[1], 1, shape[1])
            for begin in range(0, shape[0], rows_at_once):
                rows = values[begin : begin + rows_at_once].float()
                if len(own) > 1:
                    first = begin // sizes[0]
                    of_rows = by_column[first : first - (-len(rows) // sizes[0])]
                    rows *= _repeat(of_rows, sizes[0], 0, len(rows))
                else:
                    rows *= by_column
                whole[begin : begin + rows_at_once] = rows
        return plain

    def _broadcastable(self) -> tuple[Tensor, tuple[int, int]]:
        """Float32 scales of as many dimensions as the weight, and outputs and inputs of each of
        them where there are several."""
        shape, scales = self.values.shape, self.scales.float()
        if scales.dim() == 4 and scales.shape[1] == scales.shape[3] == 1:  # ModelOpt's blocks
            scales = scales[:, 0, :, 0]
        if scales.numel() == 1:
            return scales.reshape((1,) * len(shape)), (1, 1)
        if scales.dim() < len(shape) and scales.shape == shape[: scales.dim()]:
            scales = scales[(...,) + (None,) * (len(shape) - scales.dim())]
        if scales.dim() == len(shape):
            if self.block is not None and self._is_in_blocks(scales):
                return scales, self.block
            pairs = zip(scales.shape, shape, strict=True)
            if all(scale in (1, size) for scale, size in pairs):
                return scales, (1, 1)
        raise UnsupportedModel(
            f"the weight {self.name!r} cannot be read: its weights are {list(shape)}, its scales "
            f"{list(self.scales.shape)}"
        )

    def _is_in_blocks(self, scales: Tensor) -> bool:
        sizes = zip(self.values.shape[-2:], self.block or (), strict=True)
        whole = scales.shape[:-2] == self.values.shape[:-2]
        return whole and list(scales.shape[-2:]) == [-(-size // part) for size, part in sizes]


def _repeat(scales: Tensor, times: int, dim: int, size: int) -> Tensor:
    """Each as often along `dim`, up to `size`; a single one is left to broadcasting."""
    if times == 1 or scales.shape[dim] == 1:
        return scales
    return scales.repeat_interleave(times, dim).narrow(dim, 0, size)


def find_scaling(config: Mapping[str, Any]) -> Scaling | None:
    """What a `quantization_config` says; None for another method.

    Raises UnsupportedModel for one of these that is not only a multiplication.
    """
    method = config.get("quant_method")
    if method == "fbgemm_fp8":
        return Scaling()
    if method == "fp8":
        _check(config, "fmt", (None, "e4m3", "e5m2"))
        return Scaling(_block(config.get("weight_block_size"), "weight_block_size"))
    if method == "modelopt":
        algorithm = config.get("quant_algo")
        _check(config, "quant_algo", tuple(_MODELOPT_BLOCKS))
        return Scaling(_MODELOPT_BLOCKS[str(algorithm)])
    formats = ("float-quantized", "naive-quantized", "int-quantized")
    if method == "compressed-tensors" and config.get("format") in formats:
        return _compressed_tensors(config)
    return None


def take_scaled(
    tensors: Mapping[str, Tensor], scaling: Scaling
) -> tuple[dict[str, Tensor], dict[str, ScaledWeight]]:
    """The plain tensors, and the scaled ones by their names. Raises UnsupportedModel."""
    plain = {
        name: tensor
        for name, tensor in tensors.items()
        if name.rpartition(".")[2] not in _NOT_OF_WEIGHTS
    }
    dtypes = (*_FLOATS, torch.int8) if scaling.integers else _FLOATS
    scaled = {}
    for name in [name for name, tensor in plain.items() if tensor.dtype in dtypes]:
        own = next((name + suffix for suffix in _SUFFIXES if name + suffix in plain), None)
        if own is None:
            if plain[name].dtype in _SCALES:
                continue
            raise UnsupportedModel(f"the weight {name!r} is {_name(plain[name])} without a scale")
        if plain[own].dtype not in _SCALES:
            raise UnsupportedModel(f"the scale {own!r} is {_name(plain[own])}, which is not read")
        scaled[name] = ScaledWeight(name, plain.pop(name), plain.pop(own), scaling.block)
    return plain, scaled


def _compressed_tensors(config: Mapping[str, Any]) -> Scaling:
    _check(config, "sparsity_config", (None, {}))
    _check(config, "transform_config", (None, {}))
    blocks, integers = set(), False
    for group in (config.get("config_groups") or {}).values():
        weights = group.get("weights") or {}
        _check(weights, "num_bits", (8,))
        _check(weights, "type", ("float", "int"))
        _check(weights, "symmetric", (True,))
        _check(weights, "strategy", _CHANNELS)
        blocks.add(_block(weights.get("block_structure"), "block_structure"))
        integers |= weights.get("type") == "int"
    if len(blocks) > 1:
        raise UnsupportedModel("the checkpoint's quantization_config has several block_structures")
    return Scaling(blocks.pop() if blocks else None, integers)


def _block(value: Any, field: str) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, str):  # "128x128"
        value = [int(size) if size.isdigit() else 0 for size in value.split("x")]
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(value):
        raise UnsupportedModel(f"the checkpoint's quantization_config has {field}={value!r}")
    return int(value[0]), int(value[1])


def _check(config: Mapping[str, Any], field: str, known: tuple[object, ...]) -> None:
    if config.get(field, known[0]) not in known:
        raise UnsupportedModel(
            f"the checkpoint's quantization_config has {field}={config[field]!r}, of which "
            f"{', '.join(map(repr, known))} can be read: use the model's plain checkpoint, with "
            "weights='int4' or 'int8' if it must be small"
        )


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
