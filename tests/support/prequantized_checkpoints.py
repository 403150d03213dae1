"""Checkpoints as three quantizers publish them, of small models with random numbers.

Written after what reads them: AutoGPTQ's and GPTQModel's QuantLinear (qweight, qzeros less one,
scales, g_idx), AutoAWQ's WQLinear_GEMM (eight outputs of an int32 as 0 2 4 6 1 3 5 7), and
pack_to_int32 of compressed-tensors 0.17 (numbers and zeros with half of the range added).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A matrix: scale times (value - zero), each group of inputs with its own."""

    values: Tensor
    """int32 [outputs, inputs]"""
    zeros: Tensor
    """int32 [outputs, groups]"""
    scales: Tensor
    """[outputs, groups]"""

    def weight(self) -> Tensor:
        """Float32 [outputs, inputs]."""
        size = self.values.shape[1] // self.scales.shape[1]
        scales, zeros = (
            part.float().repeat_interleave(size, 1) for part in (self.scales, self.zeros)
        )
        return scales * (self.values.float() - zeros)


def draw(
    outputs: int, inputs: int, bits: int, group: int, *, symmetric: bool, seed: int
) -> Numbers:
    generator = torch.Generator().manual_seed(seed)
    count = inputs // group
    values = torch.randint(0, 1 << bits, (outputs, inputs), generator=generator)
    zeros = torch.randint(0, 1 << bits, (outputs, count), generator=generator)
    if symmetric:
        zeros = torch.full_like(zeros, 1 << (bits - 1))
    scales = (torch.rand(outputs, count, generator=generator) + 0.5) * 0.25 / (1 << bits)
    return Numbers(values.int(), zeros.int(), scales.to(torch.bfloat16).half())


def pack(values: Tensor, bits: int) -> Tensor:
    """int32 [rows, columns] to [rows, columns * bits / 32], the first in the lowest bits."""
    count = 32 // bits
    places = torch.arange(count) * bits
    numbers = values.long().reshape(len(values), -1, count)
    packed: Tensor = (numbers << places).sum(-1)
    return packed.to(torch.int32)  # wraps


def gptq(numbers: Numbers, bits: int, *, version: int = 1) -> dict[str, Tensor]:
    inputs = numbers.values.shape[1]
    zeros = (numbers.zeros - (1 if version == 1 else 0)) % (1 << bits)
    return {
        "qweight": pack(numbers.values, bits).T.contiguous(),
        "qzeros": pack(zeros.T, bits).contiguous(),
        "scales": numbers.scales.T.contiguous(),
        "g_idx": torch.arange(inputs).int() // (inputs // numbers.scales.shape[1]),
    }


def awq(numbers: Numbers) -> dict[str, Tensor]:
    def packed(values: Tensor) -> Tensor:
        eights = values.T.reshape(values.shape[1], -1, 8)[..., _AWQ_ORDER]
        return pack(eights.flatten(1), 4).contiguous()

    return {
        "qweight": packed(numbers.values),
        "qzeros": packed(numbers.zeros),
        "scales": numbers.scales.T.contiguous(),
    }


def compressed(numbers: Numbers, bits: int, *, symmetric: bool) -> dict[str, Tensor]:
    tensors = {
        "weight_packed": pack(numbers.values, bits),
        "weight_scale": numbers.scales.bfloat16(),
        "weight_shape": torch.tensor(numbers.values.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack(numbers.zeros.T, bits).T.contiguous()
    return tensors


def write(
    folder: Path, model: Any, config: dict[str, Any], tensors: dict[str, dict[str, Tensor]]
) -> Path:
    """A checkpoint of `model` whose matrices are `tensors`, by the names of their modules."""
    state = {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if name.removesuffix(".weight") not in tensors
    }
    for module, parts in tensors.items():
        state |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    describe(folder, config)
    return folder


def describe(folder: Path, config: dict[str, Any]) -> None:
    """Let the checkpoint say that it is quantized like this."""
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"quantization_config": config}))
