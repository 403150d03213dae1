"""Panels of weights in the wide form: see wide.h."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.model.quantized_weight import PART, WIDE_GROUP, QuantizedWeight
from roseinfer.native.library import PANEL_WIDTH

_SCALES_BYTES = 2 * PANEL_WIDTH
_PARTS = WIDE_GROUP // PART


def pack_wide(weight: QuantizedWeight) -> Tensor:
    """Bytes [panels, groups, bytes of one]; outputs that pad the last panel have no scale."""
    outputs, groups = weight.scales.shape
    parts = [_by_panel(weight.scales).contiguous().view(torch.uint8)]
    if weight.scale_factors is not None:
        factors = weight.scale_factors
        two = (factors[:, 0::2] | factors[:, 1::2] << 4).view(outputs, groups, _PARTS // 2)
        parts.append(_by_panel(two).flatten(2))
    steps = 8 // weight.bits
    values = _by_panel(weight.values.view(outputs, groups, -1, steps, 4))
    units = values.permute(0, 1, 3, 4, 2, 5)  # [panels, groups, units, steps, outputs, 4]
    bytes_ = units[:, :, :, 0] if steps == 1 else units[:, :, :, 0] | units[:, :, :, 1] << 4
    return torch.cat([*parts, bytes_.flatten(2)], dim=-1).contiguous()


def unpack_wide(panels: Tensor, bits: int) -> QuantizedWeight:
    """The numbers of all outputs, those that pad the last panel among them."""
    panels_and_groups, header = panels.shape[:2], _SCALES_BYTES
    scales = panels[..., :header].contiguous().view(torch.float16)
    factors = None
    if bits == 4:
        header += _PARTS * PANEL_WIDTH // 2
        two = panels[..., _SCALES_BYTES:header].reshape(*panels_and_groups, PANEL_WIDTH, -1)
        factors = _by_output(torch.stack([two & 15, two >> 4], dim=-1).flatten(3))
    units = panels[..., header:].reshape(*panels_and_groups, -1, 1, PANEL_WIDTH, 4)
    steps = units if bits == 8 else torch.cat([units & 15, units >> 4], dim=3)
    values = _by_output(steps.permute(0, 1, 4, 2, 3, 5).flatten(3))
    return QuantizedWeight(values, _by_output(scales), bits, scale_factors=factors, wide=True)


def _by_panel(rows: Tensor) -> Tensor:
    """[outputs, n, ...] as [panels, n, PANEL_WIDTH, ...], with zeros for missing outputs."""
    missing = -len(rows) % PANEL_WIDTH
    padded = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing))
    return padded.view(-1, PANEL_WIDTH, *rows.shape[1:]).transpose(1, 2)


def _by_output(panels: Tensor) -> Tensor:
    """[panels, groups, PANEL_WIDTH, ...] as [outputs, what is left of each]."""
    return panels.transpose(1, 2).flatten(0, 1).flatten(1)
