"""Panels of weights in the wide form: see wide.h."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.model.quantized_weight import PART, SLICE, WIDE_GROUP, QuantizedWeight
from roseinfer.native.library import PANEL_WIDTH

_SLICES = WIDE_GROUP // SLICE
_PARTS = WIDE_GROUP // PART
_SCALES_BYTES = 2 * PANEL_WIDTH


def pack_wide(weight: QuantizedWeight) -> Tensor:
    """Bytes [panels, bytes of one]; outputs that pad the last panel have no scale."""
    headers = [_by_panel(weight.scales).contiguous().view(torch.uint8)]
    if weight.scale_factors is not None:
        factors = F.pad(weight.scale_factors, (0, -weight.scale_factors.shape[1] % _PARTS))
        two = (factors[:, 0::2] | factors[:, 1::2] << 4).view(len(factors), -1, _PARTS // 2)
        headers.append(_by_panel(two).flatten(2))
    header = torch.cat(headers, dim=-1)  # [panels, groups, bytes]
    steps = 8 // weight.bits
    units = weight.values.reshape(len(weight.values), -1, 2 * weight.bits, steps, 4)
    # [panels, slices, outputs, units, steps, 4], then the outputs behind the steps
    units = _by_panel(units).permute(0, 1, 3, 4, 2, 5)
    halves = units[:, :, :, 0] if steps == 1 else units[:, :, :, 0] | units[:, :, :, 1] << 4
    slices = halves.flatten(2)  # [panels, slices, bytes]
    whole = slices.shape[1] // _SLICES
    groups = slices[:, : whole * _SLICES].reshape(len(slices), whole, _SLICES * slices.shape[2])
    panels = torch.cat([header[:, :whole], groups], dim=-1).flatten(1)
    if slices.shape[1] % _SLICES:
        panels = torch.cat([panels, header[:, -1], slices[:, -1]], dim=-1)
    return panels.contiguous()


def unpack_wide(panels: Tensor, bits: int, inputs: int) -> QuantizedWeight:
    """The numbers of all outputs, those that pad the last panel among them."""
    header_bytes = _SCALES_BYTES + (4 * PANEL_WIDTH if bits == 4 else 0)
    slice_bytes = SLICE * PANEL_WIDTH * bits // 8
    missing = slice_bytes if inputs % WIDE_GROUP else 0
    size = header_bytes + _SLICES * slice_bytes
    groups = F.pad(panels, (0, missing)).view(len(panels), -1, size)
    scales = groups[..., :_SCALES_BYTES].contiguous().view(torch.float16)
    factors = None
    if bits == 4:
        halves = groups[..., _SCALES_BYTES:header_bytes]
        halves = halves.reshape(*groups.shape[:2], PANEL_WIDTH, -1)
        parts = torch.stack([halves & 15, halves >> 4], dim=-1).flatten(-2)
        factors = _by_output(parts)[:, : inputs // PART]
    units = groups[..., header_bytes:].reshape(*groups.shape[:2], -1, 1, PANEL_WIDTH, 4)
    steps = units if bits == 8 else torch.cat([units & 15, units >> 4], dim=3)
    values = _by_output(steps.permute(0, 1, 4, 2, 3, 5).flatten(3))[:, :inputs]
    return QuantizedWeight(values, _by_output(scales), bits, scale_factors=factors, wide=True)


def _by_panel(rows: Tensor) -> Tensor:
    """[outputs, n, ...] as [panels, n, PANEL_WIDTH, ...], with zeros for missing outputs."""
    missing = -len(rows) % PANEL_WIDTH
    padded = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing))
    return padded.view(-1, PANEL_WIDTH, *rows.shape[1:]).transpose(1, 2)


def _by_output(panels: Tensor) -> Tensor:
    """[panels, groups, PANEL_WIDTH, ...] as [outputs, what is left of each]."""
    return panels.transpose(1, 2).flatten(0, 1).flatten(1)
