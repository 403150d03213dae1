"""Weights of 8 and 4 bits: groups of inputs of an output share a scale.

They are made of a model's weights, or are those of its file.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rose.errors import ConfigurationError, UnsupportedModel
from roseinfer.model.families import Parts
from roseinfer.model.linears import PartOfHeads, parameter_of, set_weight, weight_of
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.model.quantized_weight import (
    GROUP,
    PART,
    ROWS_SIZE,
    WIDE_GROUP,
    CompactWeight,
    QuantizedWeight,
    join,
)

#: What `weights` may be: bits of the layers' matrices, and of the head, which decides each token.
FORMATS = {"int8": (8, 8), "int4": (4, 8)}

#: The numbers of the checkpoint's file, which has few bits itself.
FROM_FILE = "file"


def format_name(weights: str | None) -> str | None:
    """`weights` as a fingerprint has them: groups of another size would be another model."""
    return f"{weights} in groups of {WIDE_GROUP}" if weights in FORMATS else weights


# Four bits: the scale that brings the largest weight to the end of the range is seldom the best.
# These multiples of it are tried too, and of each the values' own best scale is taken.
_STRETCHES = (1.14, 0.92)
_MANY = 32  # times ROWS_SIZE weights are compacted together


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
    return _by_rows(weight, (lambda rows: _bytes(rows, GROUP)) if bits == 8 else _halves)


@torch.no_grad()
def quantize_wide(weight: Tensor, bits: int) -> QuantizedWeight:
    """The same in the wide form, which many rows at once are multiplied faster with. `inputs` must
    be a multiple of 64."""
    return _by_rows(weight, (lambda rows: _bytes(rows, WIDE_GROUP)) if bits == 8 else _wide_halves)


def _by_rows(weight: Tensor, quantize_rows: Callable[[Tensor], QuantizedWeight]) -> QuantizedWeight:
    rows_at_once = max(1, ROWS_SIZE // weight.shape[1])
    whole = join([quantize_rows(rows.float()) for rows in torch.split(weight, rows_at_once)])
    if not whole.scales.isfinite().all():
        raise ValueError("a weight is not finite or beyond the range of a float16 scale")
    return whole


def _bytes(rows: Tensor, group: int) -> QuantizedWeight:
    groups = rows.reshape(len(rows), -1, group)
    scales = groups.abs().amax(-1).div_(127).half()
    values = _round(groups, scales, 128).flatten(1)
    return QuantizedWeight(values, scales, 8, wide=group == WIDE_GROUP)


def _halves(rows: Tensor) -> QuantizedWeight:
    groups = rows.reshape(len(rows), -1, GROUP)
    full = _full_scales(groups)
    best = _fit(groups, full)
    for stretch in _STRETCHES:
        best = _better(_fit(groups, full * stretch), best)
    return QuantizedWeight(best[0].flatten(1), best[1].half(), 4)


def _full_scales(groups: Tensor) -> Tensor:
    """Those that bring the largest weight to the end of four bits' range. There is one value more
    below zero than above: the largest gets it."""
    index = groups.abs().argmax(-1, keepdim=True)
    return groups.gather(-1, index).squeeze(-1).div_(-8)


def _fit(groups: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values of four bits as `scales` round them, their own best scales, and the error squared."""
    values = _round(groups, scales, 8)
    whole = values.float().sub_(8)
    best = (whole * groups).sum(-1) / whole.square().sum(-1).clamp_min(1)
    return values, best, _errors(groups, values, best)


def _round(groups: Tensor, scales: Tensor, offset: int) -> Tensor:
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales.float())
    rounded = (groups * inverse[..., None]).round_().add_(offset)
    return rounded.clamp_(1 if offset == 128 else 0, 2 * offset - 1).to(torch.uint8)


def _wide_halves(rows: Tensor) -> QuantizedWeight:
    """Four bits. A group's scale is a fifteenth of the largest that a part of it wants. It has one
    sign, so a part whose largest weight has the other one needs more of it; of the factors next to
    what each part wants the best is taken."""
    parts = rows.reshape(len(rows), -1, WIDE_GROUP // PART, PART)
    wanted = _full_scales(parts)
    largest = wanted.gather(-1, wanted.abs().argmax(-1, keepdim=True))
    scales = largest.div(15).half()
    steps = scales.float()
    near = torch.where(steps == 0, 0.0, wanted / steps).nan_to_num_(0.0, 0.0, 0.0)
    near = torch.where(near < 0, near * (-8 / 7), near).floor_()
    best = _round_parts(parts, steps, near - 1)
    for more in (0, 1):
        best = _better(_round_parts(parts, steps, near + more), best)
    return QuantizedWeight(
        best[0].flatten(1),
        scales.squeeze(-1),
        4,
        scale_factors=best[1].flatten(1).to(torch.uint8),
        wide=True,
    )


def _round_parts(parts: Tensor, steps: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values of four bits, the factors, and the error squared."""
    factors = factors.clamp(0, 15)
    scales = factors * steps
    values = _round(parts, scales, 8)
    return values, factors, _errors(parts, values, scales)


def _errors(groups: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    meant = values.float().sub_(8).mul_(scales[..., None])
    return meant.sub_(groups).square_().sum(-1)


def _better(
    found: tuple[Tensor, Tensor, Tensor], best: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each group that whose error, the last of the three, is smaller."""
    better = found[2] < best[2]
    return (
        torch.where(better[..., None], found[0], best[0]),
        torch.where(better, found[1], best[1]),
        torch.where(better, found[2], best[2]),
    )


def quantize_model(
    model: Any, parts: Parts, weights: str, taken: QuantizedLinears | None = None
) -> QuantizedLinears:
    """The linear layers' weights in the format `weights`, those among them that were `taken` while
    they were read. The model's own are dropped; an embedding that shares the head's becomes what
    the head's mean, in its dtype.

    Raises ConfigurationError for a model in another dtype than bfloat16, UnsupportedModel for
    weights that cannot be quantized.
    """
    check_format(weights, model.device, model.dtype)
    if weights not in FORMATS:
        raise ConfigurationError(f"weights={weights!r} is for a model that comes from a file")
    taken = QuantizedLinears() if taken is None else taken
    inside, head = FORMATS[weights]
    sharing: dict[nn.Parameter, list[Any]] = {}
    for linear in parts.linears:
        sharing.setdefault(parameter_of(linear), []).append(linear)
    for parameter, linears in sharing.items():
        if linears[0] in taken:
            continue
        for linear in linears:
            taken[linear] = quantize_linear(
                linear, weights, head if linear is parts.head else inside
            )
        if parameter is parts.embedding.weight:
            set_weight(parts.head, taken[parts.head].dequantize(parameter.dtype))
        else:
            taken.drop(linears)
    return taken


def quantize_linear(linear: Any, weights: str, bits: int) -> CompactWeight:
    """Its weights, for the format `weights`. Raises UnsupportedModel."""
    weight = weight_of(linear).detach()
    inputs = weight.shape[1]
    if inputs % GROUP:
        raise UnsupportedModel(
            f"weights={weights!r} needs matrices whose inputs are a multiple of {GROUP}: one "
            f"of this model has {inputs}"
        )
    make = quantize if inputs % WIDE_GROUP else quantize_wide
    rows_at_once = max(1, _MANY * ROWS_SIZE // inputs)
    try:
        return CompactWeight.join(
            [CompactWeight.of(make(rows, bits)) for rows in torch.split(weight, rows_at_once)]
        )
    except ValueError as error:
        raise UnsupportedModel(f"weights={weights!r} cannot hold this model: {error}") from error


def in_order(weight: CompactWeight | None, linear: Any) -> CompactWeight | None:
    """The outputs of what a file has as `weight_of` has them; None if they cannot be had."""
    if isinstance(linear, PartOfHeads):
        return None
    order = getattr(linear, "order", None)
    return weight if weight is None or order is None else weight.take(order)


def check_stored(parts: Parts, taken: QuantizedLinears) -> None:
    """What was `taken` of a file, in a form of the decoder's. Of layers that become one matrix it
    must be all: else the model gets its own weights back.

    Raises UnsupportedModel if nothing is left.
    """
    for linears in parts.fused_linears:
        if not all(linear in taken for linear in linears):
            taken.give_back(linears)
    if not len(taken):
        raise UnsupportedModel(
            f"weights={FROM_FILE!r} keeps the numbers of a quantized file, and this model has no "
            "matrix that can be kept: leave weights out, or choose int8 or int4"
        )
