"""Which runner a model gets: the fastest one that computes what the model itself would."""

from __future__ import annotations

import logging
from typing import Any

from roseinfer.gpu.backends import choose_attention
from roseinfer.gpu.options import GpuOptions
from roseinfer.limits import model_type
from roseinfer.model import PackedModel, Runner
from roseinfer.native import build_decoder
from roseinfer.packed_linear import pack_linears
from roseinfer.probe import AttentionLayers, Reference, find_layers, refuse

_logger = logging.getLogger(__name__)


def build_runner(
    model: Any, context: int, options: GpuOptions | None = None
) -> tuple[Runner, AttentionLayers]:
    """What runs `model`, contexts up to `context` tokens, and its attention layers.

    The model is taken over; the compiled decoder is considered unless `options` name an attention.
    Raises UnsupportedModel if no runner agrees with it.
    """
    options = options or GpuOptions()
    attention = choose_attention(options, model.device)
    layers = find_layers(model)
    reference = Reference(model)
    decoder = build_decoder(model, layers, context) if options.attention is None else None
    if decoder is not None:
        error = reference.error(decoder, layers)
        if error <= reference.tolerance:
            return decoder, layers
        _logger.warning(
            "the compiled decoder differs from this %s model (relative error %.2g): not used",
            model_type(model),
            error,
        )
        decoder.restore()
    pack_linears(model)
    packed = PackedModel(model, layers.modules, attention)
    error = reference.error(packed, layers)
    if not error <= reference.tolerance:
        raise refuse(
            model,
            f"the engine's logits differ from the model's own (relative error {error:.2g}, "
            f"tolerated {reference.tolerance:g})",
        )
    return packed, layers
