"""Which runner a model gets: the fastest one that computes what the model itself would."""

from __future__ import annotations

import logging
from typing import Any

import torch

from rose_errors import UnsupportedModel
from roseinfer.gpu.backends import choose_attention, has_triton
from roseinfer.gpu.options import GpuOptions
from roseinfer.limits import model_type
from roseinfer.model import PackedModel, Runner
from roseinfer.native import build_decoder
from roseinfer.packed_linear import pack_linears
from roseinfer.probe import AttentionLayers, Reference, refuse

_logger = logging.getLogger(__name__)


def build_runner(
    model: Any, layers: AttentionLayers, context: int, options: GpuOptions | None = None
) -> Runner:
    """What runs `model`, whose attention is `layers`, on contexts up to `context` tokens.

    The model is taken over; the compiled decoder is considered unless `options` name an attention.
    Raises UnsupportedModel if no runner agrees with it.
    """
    options = options or GpuOptions()
    attention = choose_attention(options, model.device)
    reference = Reference(model)
    decoder = build_decoder(model, layers, context) if options.attention is None else None
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
    packed = PackedModel(model, layers.modules, attention)
    error = reference.error(packed, layers)
    if not error <= reference.tolerance:
        raise refuse(
            model,
            f"the engine's logits differ from the model's own (relative error {error:.2g}, "
            f"tolerated {reference.tolerance:g})",
        )
    return _graphed(packed, reference, layers, context, options, model) or packed


def _graphed(
    packed: PackedModel,
    reference: Reference,
    layers: AttentionLayers,
    context: int,
    options: GpuOptions,
    model: Any,
) -> Runner | None:
    """`packed` with CUDA graphs, where they work; the log says why they do not."""
    device: torch.device = model.device
    if device.type != "cuda" or not options.cuda_graphs:
        return None
    if options.attention not in (None, "triton") or not has_triton():
        _logger.warning("no CUDA graphs: they need attention='triton'")
        return None
    # Triton's, which only a machine with a GPU must have.
    from roseinfer.gpu.graphs import CudaRecorder, GraphedModel, batch_sizes

    def graphed(sizes: list[int]) -> GraphedModel:
        recorder, budget = CudaRecorder(device), options.graph_bytes
        return GraphedModel(packed, recorder, sizes, context=context, budget_bytes=budget)

    return trusted(graphed([2]), graphed(batch_sizes(options.max_batch_size)), reference, layers)


def trusted(
    trial: Runner, graphed: Runner, reference: Reference, layers: AttentionLayers
) -> Runner | None:
    """`graphed`, if `trial`, which has a graph or two, can be captured and computes what it should.

    What a capture cannot hold may fail in any way, and a model whose code looks at values would
    replay the answer to another question.
    """
    try:
        error = reference.error(trial, layers)
    except UnsupportedModel as failure:
        _logger.warning("no CUDA graphs: %s", failure)
        return None
    if not error <= reference.tolerance:
        _logger.warning("no CUDA graphs: replayed logits differ (relative error %.2g)", error)
        return None
    return graphed
