"""Which runner a model gets: the fastest one that computes what the model itself would."""

import logging
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from rose.errors import UnsupportedModel
from roseinfer.gpu.backends import attention_of, choose_attention
from roseinfer.gpu.options import GRAPH_BYTES, GpuOptions
from roseinfer.model.attention_layers import AttentionLayers, refuse
from roseinfer.model.families import find_parts
from roseinfer.model.limits import model_type
from roseinfer.model.packed_linear import pack_linears
from roseinfer.model.probe import Reference
from roseinfer.model.quantization import FROM_FILE, check_stored, quantize_model
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.model.runner import PackedRunner, Runner
from roseinfer.model.state_layers import recur_in_torch
from roseinfer.model.transformers_model import PackedModel
from roseinfer.native import available, build_decoder, build_name, missing_reason
from roseinfer.native import recur as compiled_recur

_logger = logging.getLogger(__name__)
_Runner = TypeVar("_Runner", bound=Runner, covariant=True)


class ChosenRunner(NamedTuple, Generic[_Runner]):
    """A runner, and a description of its decoder, for the log and the engine's users."""

    runner: _Runner
    description: str


def build_runner(
    model: Any,
    layers: AttentionLayers,
    context: int,
    options: GpuOptions | None = None,
    weights: str | None = None,
    taken: QuantizedLinears | None = None,
) -> ChosenRunner[Runner]:
    """What runs `model`, whose attention is `layers`, on contexts up to `context` tokens.

    The model is taken over. One log line says which decoder serves, and on a CPU why it is not the
    compiled one. `weights` names a format of `model.quantization`, `taken` has those that were
    brought to it while they were read.
    Raises UnsupportedModel if no runner agrees with the model.
    """
    if weights is not None:
        return _quantized(model, layers, context, weights, taken)
    options = options or GpuOptions()
    attention = choose_attention(options, model.device)
    reference = Reference(model)
    if model.device.type == "cpu":
        chosen = _on_cpu(model, layers, context, attention, reference)
    else:
        chosen = _on_gpu(model, layers, context, attention, reference, options)
    _logger.info("decoder: %s", chosen.description)
    return chosen


def _on_cpu(
    model: Any, layers: AttentionLayers, context: int, attention: str, reference: Reference
) -> ChosenRunner[Runner]:
    compiled = _compiled(model, layers, context, attention, reference)
    if not isinstance(compiled, str):
        return ChosenRunner(compiled, f"compiled ({build_name()})")
    packed = _packed(model, layers, context, attention, reference)
    return ChosenRunner(packed.runner, f"{packed.description}; not the compiled one: {compiled}")


def _compiled(
    model: Any, layers: AttentionLayers, context: int, attention: str, reference: Reference
) -> Runner | str:
    """The compiled decoder, or why it does not serve.

    "sdpa" chooses the attention of transformers' code, should that serve; only ROSEINFER_NATIVE=0
    turns the compiled decoder off. Kernels of ours that were asked for by name must run.
    """
    if attention == "triton":
        return f"attention={attention!r} was asked for"
    decoder = build_decoder(model, layers, context)
    if isinstance(decoder, str):
        return decoder
    try:
        agrees = _agrees("compiled", decoder, reference, layers, model)
    except UnsupportedModel as failure:
        decoder.restore()
        return str(failure)
    if not agrees:
        decoder.restore()
        return "its logits differ from the model's"
    return decoder


def _quantized(
    model: Any,
    layers: AttentionLayers,
    context: int,
    weights: str,
    taken: QuantizedLinears | None,
) -> ChosenRunner[Runner]:
    """The compiled decoder on quantized weights: nothing else reads them. It is compared with the
    model of the dequantized ones."""
    reason = missing_reason()
    parts = None if reason else find_parts(model, layers)
    if parts is not None:
        if weights == FROM_FILE and taken is not None:
            check_stored(parts, quantized := taken)
        else:
            quantized = quantize_model(model, parts, weights, taken)
        with quantized.lent(model):
            reference = Reference(model, quantized=True)
        decoder = build_decoder(model, layers, context, quantized)
        if isinstance(decoder, str):
            reason = decoder
        elif _agrees("compiled", decoder, reference, layers, model):
            chosen = ChosenRunner(decoder, f"compiled ({build_name()}), {weights} weights")
            _logger.info("decoder: %s", chosen.description)
            return chosen
        else:
            reason = "its logits differ from the model's"
    reason = reason or f"it does not know this kind of {model_type(model)} model"
    raise refuse(model, f"weights={weights!r} needs the compiled decoder, and {reason}")


def _on_gpu(
    model: Any,
    layers: AttentionLayers,
    context: int,
    attention: str,
    reference: Reference,
    options: GpuOptions,
) -> ChosenRunner[Runner]:
    if layers.states:
        raise refuse(model, "its layers with a state run on a CPU only")
    packed = _packed(model, layers, context, attention, reference)
    eager = ChosenRunner(*packed)
    if not options.cuda_graphs:
        return eager
    if attention != "triton":
        _logger.warning("no CUDA graphs: they need attention='triton'")
        return eager
    graphed = _graphed(packed.runner, reference, layers, context, options, model.device)
    if graphed is None:
        return eager
    return ChosenRunner(graphed, f"{packed.description}, CUDA graphs")


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
) -> ChosenRunner[PackedRunner]:
    """The fused decoder where it can be, otherwise transformers' own code."""
    if attention == "triton":
        # Triton's, which only a machine with a GPU must have.
        from roseinfer.gpu.decoder import build_fused

        fused = build_fused(model, layers, context)
        if fused is not None and _agrees("fused", fused, reference, layers, model):
            return ChosenRunner(fused, f"fused kernels, {attention} attention")
    pack_linears(model)
    recur = compiled_recur if available() else recur_in_torch
    packed = PackedModel(model, layers, attention_of(attention), recur)
    error = reference.error(packed, layers)
    if not error <= reference.tolerance:
        raise refuse(
            model,
            f"the engine's logits differ from the model's own (relative error {error:.2g}, "
            f"tolerated {reference.tolerance:g})",
        )
    return ChosenRunner(packed, f"transformers' own code, {attention} attention")


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
        recorder = CudaRecorder(device)
        return GraphedModel(packed, recorder, sizes, context=context, budget_bytes=GRAPH_BYTES)

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
