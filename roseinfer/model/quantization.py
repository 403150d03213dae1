"""Weights of 8 and 4 bits: groups of inputs of an output share a scale.

They are made of a model's weights, or are those of its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rose.errors import ConfigurationError, UnsupportedModel
from roseinfer.model.families import Parts, weight_of
from roseinfer.model.quantized_weight import GROUP, QuantizedWeight

#: What `weights` may be: bits of the layers' matrices, and of the head, which decides each token.
FORMATS = {"int8": (8, 8), "int4": (4, 8)}

#: The numbers of the checkpoint's file, which has few bits itself.
FROM_FILE = "file"

# Four bits: the scale that brings the largest weight to the end of the range is seldom the best.
# These multiples of it are tried too, and of each the values' own best scale is taken.
_STRETCHES = (1.14, 0.92)


def check_format(weights: str | None, device: torch.device, dtype: torch.dtype | None) -> None:
    """Raises ConfigurationError for weights that this device or dtype cannot have."""
    if weights is None:
        return
    if weights not in (known := (*FORMATS, FROM_FILE)):
        raise ConfigurationError(f"weights={weights!r} is not one of {', '.join(known)}")
    if device.type != "cpu":
        raise ConfigurationError(f"weights={weights!r} is for device='cpu', not {str(device)!r}")
    if dtype not in (None, torch.bfloat16):
        raise ConfigurationError(
            f"weights={weights!r} computes the rest in bfloat16: leave dtype out, it is {dtype}"
        )


@torch.no_grad()
def quantize(weight: Tensor, bits: int) -> QuantizedWeight:
    """The nearest weights of `bits` bits. `inputs` must be a multiple of 32.

    Raises ValueError for numbers that are not finite or too large for float16 scales.
    """
    parts = [_quantize_rows(rows, bits) for rows in torch.split(weight, _rows_at_once(weight))]
    values, scales = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    if not scales.isfinite().all():
        raise ValueError("a weight is not finite or beyond the range of a float16 scale")
    return QuantizedWeight(values, scales, bits)


def _groups(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), -1, GROUP)


def _rows_at_once(weight: Tensor) -> int:
    """So that what lies between fits into a processor's cache."""
    return max(1, (1 << 18) // weight.shape[1])


def _quantize_rows(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    groups = _groups(rows.float())
    offset = 1 << (bits - 1)
    if bits == 8:
        scales = groups.abs().amax(-1).div_(offset - 1).half()
        return _round(groups, scales, offset).flatten(1), scales
    # There is one value more below zero than above: the largest weight gets it.
    index = groups.abs().argmax(-1, keepdim=True)
    full = groups.gather(-1, index).squeeze(-1).div_(-offset)
    best = _fit(groups, full)
    for stretch in _STRETCHES:
        values, scales, error = _fit(groups, full * stretch)
        better = error < best[2]
        best = (
            torch.where(better[..., None], values, best[0]),
            torch.where(better, scales, best[1]),
            torch.where(better, error, best[2]),
        )
    return best[0].flatten(1), best[1].half()


def _fit(groups: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values of four bits as `scales` round them, their own best scales, and the error squared."""
    values = _round(groups, scales, 8)
    whole = values.float().sub_(8)
    best = (whole * groups).sum(-1) / whole.square().sum(-1).clamp_min(1)
    return values, best, whole.mul_(best[..., None]).sub_(groups).square_().sum(-1)


def _round(groups: Tensor, scales: Tensor, offset: int) -> Tensor:
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales.float())
    rounded = (groups * inverse[..., None]).round_().add_(offset)
    return rounded.clamp_(1 if offset == 128 else 0, 2 * offset - 1).to(torch.uint8)


def quantize_model(model: Any, parts: Parts, weights: str) -> dict[Any, QuantizedWeight]:
    """The linear layers' weights in the format `weights`. The model's own become what those mean,
    in its dtype, and so does an embedding that shares the head's.

    Raises ConfigurationError for a model in another dtype than bfloat16, UnsupportedModel for
    weights that cannot be quantized.
    """
    check_format(weights, model.device, model.dtype)
    if weights not in FORMATS:
        raise ConfigurationError(f"weights={weights!r} is for a model that comes from a file")
    inside, head = FORMATS[weights]
    quantized: dict[Any, QuantizedWeight] = {}
    for linear in parts.linears:
        weight = weight_of(linear).detach()
        if weight.shape[1] % GROUP:
            raise UnsupportedModel(
                f"weights={weights!r} needs matrices whose inputs are a multiple of {GROUP}: one "
                f"of this model has {weight.shape[1]}"
            )
        try:
            quantized[linear] = quantize(weight, head if linear is parts.head else inside)
        except ValueError as error:
            raise UnsupportedModel(
                f"weights={weights!r} cannot hold this model: {error}"
            ) from error
        weight.copy_(quantized[linear].dequantize())
    return quantized


def take_stored(
    model: Any, parts: Parts, stored: Mapping[str, QuantizedWeight]
) -> dict[Any, QuantizedWeight]:
    """The linear layers whose weights the file has in a form of the decoder's. Of layers that
    become one matrix it must have all: else the model's own weights stay.

    Raises UnsupportedModel if there are none.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    taken: dict[Any, QuantizedWeight] = {}
    for linears in parts.fused_linears:
        stored_weights = [stored.get(names[id(linear.weight)]) for linear in linears]
        weights = [weight for weight in stored_weights if weight is not None]
        if len(weights) == len(linears):
            taken.update(zip(linears, weights, strict=True))
    if not taken:
        raise UnsupportedModel(
            f"weights={FROM_FILE!r} keeps the numbers of a quantized file, and this model has no "
            "matrix that can be kept: leave weights out, or choose int8 or int4"
        )
    return taken
