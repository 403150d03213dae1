"""Which runner a model gets: the fastest one that computes what the model itself would."""

from __future__ import annotations

import logging
from typing import Any

import torch

from rose.errors import UnsupportedModel
from roseinfer.gpu.backends import attention_of, choose_attention
from roseinfer.gpu.options import GpuOptions
from roseinfer.limits import model_type
from roseinfer.model import PackedModel, PackedRunner, Runner
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
    if options.attention is None:
        compiled = build_decoder(model, layers, context)
        if compiled is not None:
            if _agrees("compiled", compiled, reference, layers, model):
                return compiled
            compiled.restore()
    packed = _packed(model, layers, context, attention, reference)
    if model.device.type != "cuda" or not options.cuda_graphs:
        return packed
    if attention != "triton":
        _logger.warning("no CUDA graphs: they need attention='triton'")
        return packed
    return _graphed(packed, reference, layers, context, options, model.device) or packed


def _agrees(
    kind: str, decoder: Runner, reference: Reference, layers: AttentionLayers, model: Any
) -> bool:
    error = reference.error(decoder, layers)
    if error <= reference.tolerance:
        return True
    _logger.warning(
        "the %s decoder differs from this %s model (relative error %.2g): not used",
        kind,
        model_type(model),
        error,
    )
    return False


def _packed(
    model: Any, layers: AttentionLayers, context: int, attention: str, reference: Reference
) -> PackedRunner:
    """The fused decoder where it can be, otherwise transformers' own code."""
    if attention == "triton":
        # Triton's, which only a machine with a GPU must have.
        from roseinfer.gpu.decoder import build_fused

        fused = build_fused(model, layers, context)
        if fused is not None and _agrees("fused", fused, reference, layers, model):
            return fused
    pack_linears(model)
    packed = PackedModel(model, layers.modules, attention_of(attention))
    error = reference.error(packed, layers)
    if not error <= reference.tolerance:
        raise refuse(
            model,
            f"the engine's logits differ from the model's own (relative error {error:.2g}, "
            f"tolerated {reference.tolerance:g})",
        )
    return packed


def _graphed(
    packed: PackedRunner,
    reference: Reference,
    layers: AttentionLayers,
    context: int,
    options: GpuOptions,
    device: torch.device,
) -> Runner | None:
    """`packed` with CUDA graphs, where they work; the log says why they do not."""
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
