"""Which runner a model gets: the fastest one that computes what the model itself would."""

from __future__ import annotations

import logging
from typing import Any

from roseinfer.limits import model_type
from roseinfer.model import PackedModel, Runner
from roseinfer.native import build_decoder
from roseinfer.packed_linear import pack_linears
from roseinfer.probe import AttentionLayers, Reference, refuse

_logger = logging.getLogger(__name__)


def build_runner(model: Any, layers: AttentionLayers, context: int) -> Runner:
    """What runs `model`, whose attention is `layers`, on contexts up to `context` tokens.

    The model is taken over. Raises UnsupportedModel if no runner agrees with it.
    """
    reference = Reference(model)
    decoder = build_decoder(model, layers, context)
    if decoder is not None:
        error = reference.error(decoder, layers)
        if error <= reference.tolerance:
            return decoder
        _logger.warning(
            "the compiled decoder differs from this %s model (relative error %.2g): not used",
            model_type(model),
            error,
        )
        decoder.restore()
    pack_linears(model)
    packed = PackedModel(model, layers.modules)
    error = reference.error(packed, layers)
    if not error <= reference.tolerance:
        raise refuse(
            model,
            f"the engine's logits differ from the model's own (relative error {error:.2g}, "
            f"tolerated {reference.tolerance:g})",
        )
    return packed
