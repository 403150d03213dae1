"""The attention layers of a model, found by a tiny forward pass: each calls attention once.

A configuration that names a kind of layer which the engine lacks is refused before, and calls that
are not as it says are refused afterwards.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rose.errors import UnsupportedModel
from roseinfer.kv_cache.cache import LayerShape
from roseinfer.model.attention import AttentionCall, bind_everywhere, unbind
from roseinfer.model.limits import model_type, position_limits, text_config, vocab_size

#: Why a model is refused whose attention cannot be replaced.
BYPASSED = "its layers bypass transformers' attention interface"

_LAYER_TYPES = {"full_attention", "sliding_attention"}
#: With a window of one token transformers' cache keeps all of them, against its own mask.
_LEAST_WINDOW = 2
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")


@dataclass(frozen=True, slots=True)
class LayerCall:
    """How a layer calls attention; see AttentionCall."""

    module: nn.Module
    shape: LayerShape
    window: int | None
    scaling: float
    softcap: float | None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """The attention layers of a model, in the order in which a forward pass calls them."""

    calls: list[LayerCall]

    @property
    def modules(self) -> list[nn.Module]:
        return [call.module for call in self.calls]

    @property
    def shapes(self) -> list[LayerShape]:
        return [call.shape for call in self.calls]

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """What a token takes in the KV cache."""
        return sum(shape.elements_per_token for shape in self.shapes) * dtype.itemsize


def find_layers(model: Any) -> AttentionLayers:
    """The attention layers of `model`, or UnsupportedModel with the reason.

    The model must be in evaluation mode, its attention set to IMPLEMENTATION.
    """
    _check_config(model)
    try:
        calls = _record_calls(model)
        _check_calls(model, calls)
    finally:
        unbind(model)
    return AttentionLayers(calls)


def refuse(model: Any, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"model type {model_type(model)!r} is not supported: {reason}")


def refuse_failure(model: Any, action: str, error: Exception) -> UnsupportedModel:
    text = " ".join(str(error).split())
    return refuse(model, f"{action} failed: {type(error).__name__}: {text[:200]}")


def _check_config(model: Any) -> None:
    config = text_config(model)
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    if unknown:
        raise refuse(model, f"it has layers of type {', '.join(unknown)}")
    if getattr(config, "attention_chunk_size", None):
        raise refuse(model, "its attention is chunked")
    window = _window(config)
    if window is not None and not (isinstance(window, int) and window >= _LEAST_WINDOW):
        raise refuse(
            model, f"its sliding_window {window!r} leaves a token none before it to attend to"
        )
    for name in _EPSILONS:
        epsilon = getattr(config, name, None)
        if epsilon is not None and not epsilon > 0:
            raise refuse(model, f"its {name} {epsilon} lets a norm of zeros divide by zero")


@dataclass(slots=True)
class _Recorder:
    """Answers attention calls with zeros and remembers them."""

    calls: list[LayerCall] = field(default_factory=list)

    def attend(self, call: AttentionCall) -> Tensor:
        shape = LayerShape(call.key.shape[1], call.key.shape[3], call.value.shape[3])
        self.calls.append(
            LayerCall(call.module, shape, call.window, call.scaling, call.softcap, call.sinks)
        )
        heads, tokens = call.query.shape[1:3]
        return call.query.new_zeros(1, tokens, heads, shape.value_dim)


@torch.inference_mode()
def _record_calls(model: Any) -> list[LayerCall]:
    recorder = _Recorder()
    bind_everywhere(model, recorder)
    ids = probe_ids(model, min([3, *position_limits(model)]))
    positions = torch.arange(len(ids), device=model.device)
    try:
        model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
    except Exception as error:
        raise refuse_failure(model, "a packed forward pass", error) from error
    return recorder.calls


def _check_calls(model: Any, calls: list[LayerCall]) -> None:
    layers = getattr(text_config(model), "num_hidden_layers", None)
    if not calls:
        raise refuse(model, BYPASSED)
    if len({id(call.module) for call in calls}) != len(calls):
        raise refuse(model, "an attention module is called more than once in a forward pass")
    if layers is not None and len(calls) != layers:
        raise refuse(model, f"only {len(calls)} of its {layers} layers are attention layers")
    for index, (call, window) in enumerate(zip(calls, _windows(model, len(calls)), strict=True)):
        if call.window != window:
            raise refuse(
                model,
                f"layer {index} has a sliding window of {window} in its configuration, "
                f"but calls attention with {call.window}",
            )


def _windows(model: Any, layers: int) -> list[int | None]:
    """The sliding window that the configuration gives each layer."""
    config = text_config(model)
    window = _window(config)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return [window if layer == "sliding_attention" else None for layer in types]


def _window(config: Any) -> int | None:
    """Of the layers that have one; Qwen's configurations may have a number and not use it."""
    if getattr(config, "use_sliding_window", True) is False:
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window


def probe_ids(model: Any, length: int, salt: int = 0) -> Tensor:
    """Arbitrary ids, the same at every load."""
    vocab = vocab_size(model)
    ids = [(1 + 7919 * (salt + 1) * (i + 1)) % vocab for i in range(length)]
    return torch.tensor(ids, device=model.device)
