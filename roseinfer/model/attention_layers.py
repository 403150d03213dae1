"""The layers of a model that need a cache, found by a tiny forward pass: each calls attention once,
or the convolution of a layer with a state.

A configuration that names a kind of layer which the engine lacks is refused before, and calls that
are not as it says are refused afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from rose.errors import UnsupportedModel
from roseinfer.kv_cache.cache import LayerShape, StateShape, state_bytes_per_token
from roseinfer.model.attention import AttentionCall, bind_everywhere, unbind
from roseinfer.model.latents import latent_shape
from roseinfer.model.limits import model_type, position_limits, text_config, vocab_size
from roseinfer.model.shared_keys import shared_shape
from roseinfer.model.state_layers import MixingRecorder, find_mixers, keeps_sums, plug_in, unplug

#: Why a model is refused whose attention cannot be replaced.
BYPASSED = "its layers bypass transformers' attention interface"

_ATTENTION = {"full_attention", "sliding_attention", "hybrid"}
_STATE = {"linear_attention", "conv", "hybrid"}
_NEITHER = {"moe", "mlp"}
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
    is_causal: bool = True
    compact: LayerShape | None = None
    """what a runner that `compacts` keeps instead of keys and values"""


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """The layers that attend, in the order in which a forward pass calls them, and the modules of
    those with a state and its shapes. A layer may do both."""

    calls: list[LayerCall]
    mixers: list[nn.Module] = field(default_factory=list)
    states: list[StateShape] = field(default_factory=list)

    @property
    def modules(self) -> list[nn.Module]:
        return [call.module for call in self.calls]

    @property
    def shapes(self) -> list[LayerShape]:
        return [call.shape for call in self.calls]

    def compacted(self) -> "AttentionLayers":
        """The same for a runner that keeps latents, and keys and values that layers share once:
        see latents.py and shared_keys.py."""
        calls = [replace(call, shape=call.compact or call.shape) for call in self.calls]
        return replace(self, calls=calls)

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """What a token takes in the KV cache."""
        keys_and_values = sum(shape.elements_per_token for shape in self.shapes) * dtype.itemsize
        return keys_and_values + state_bytes_per_token(self.states, dtype)


def find_layers(model: Any) -> AttentionLayers:
    """The layers of `model`, or UnsupportedModel with the reason.

    The model must be in evaluation mode, its attention set to IMPLEMENTATION.
    """
    _check_config(model)
    mixers = find_mixers(model)
    try:
        layers = record_calls(model, mixers)
        _check_calls(model, layers)
    finally:
        unbind(model)
        for mixer in mixers:
            unplug(mixer)
    return layers


def refuse(model: Any, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"model type {model_type(model)!r} is not supported: {reason}")


def refuse_failure(model: Any, action: str, error: Exception) -> UnsupportedModel:
    text = " ".join(str(error).split())
    return refuse(model, f"{action} failed: {type(error).__name__}: {text[:200]}")


def _check_config(model: Any) -> None:
    config = text_config(model)
    types = set(getattr(config, "layer_types", None) or ())
    unknown = sorted(types - _ATTENTION - _STATE - _NEITHER)
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
            LayerCall(
                call.module,
                shape,
                call.window,
                call.scaling,
                call.softcap,
                call.sinks,
                compact=latent_shape(call.module) or shared_shape(call.module, shape),
            )
        )
        heads, tokens = call.query.shape[1:3]
        return call.query.new_zeros(1, tokens, heads, shape.value_dim)


@torch.inference_mode()
def record_calls(model: Any, mixers: Sequence[nn.Module] = ()) -> AttentionLayers:
    """How the layers of a model call attention, and which states those of `mixers` have.

    Raises: UnsupportedModel: it cannot compute a packed batch.
    """
    recorder, mixing = _Recorder(), [MixingRecorder() for _ in mixers]
    bind_everywhere(model, recorder)
    for mixer, called in zip(mixers, mixing, strict=True):
        plug_in(mixer, called)
    ids = probe_ids(model, min([3, *position_limits(model)]))
    positions = torch.arange(len(ids), device=model.device)
    try:
        model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
    except Exception as error:
        raise refuse_failure(model, "a packed forward pass", error) from error
    for mixer, called in zip(mixers, mixing, strict=True):
        if len(called.shapes) != 1 or keeps_sums(mixer) != (called.shapes[0].sums is not None):
            raise refuse(model, f"the state of its {type(mixer).__name__} is of an unknown kind")
    return AttentionLayers(recorder.calls, list(mixers), [called.shapes[0] for called in mixing])


def _check_calls(model: Any, layers: AttentionLayers) -> None:
    calls, types = layers.calls, _layer_types(model, len(layers.calls))
    attention = [kind for kind in types if kind in _ATTENTION]
    states = [kind for kind in types if kind in _STATE]
    if not calls and (attention or not layers.states):
        raise refuse(model, BYPASSED)
    if len({id(call.module) for call in calls}) != len(calls):
        raise refuse(model, "an attention module is called more than once in a forward pass")
    if len(calls) != len(attention):
        raise refuse(
            model, f"only {len(calls)} of its {len(attention)} layers are attention layers"
        )
    if len(layers.states) != len(states):
        raise refuse(
            model,
            f"it has {len(states)} layers with a state, of which the engine knows "
            f"{len(layers.states)}",
        )
    for index, (call, window) in enumerate(zip(calls, _windows(model, attention), strict=True)):
        if call.window != window:
            raise refuse(
                model,
                f"layer {index} has a sliding window of {window} in its configuration, "
                f"but calls attention with {call.window}",
            )


def _layer_types(model: Any, calls: int) -> list[str]:
    """What the configuration says of each layer; where it says nothing, all attend alike."""
    config = text_config(model)
    layers = getattr(config, "num_hidden_layers", None) or calls
    return list(getattr(config, "layer_types", None) or ["sliding_attention"] * layers)


def _windows(model: Any, types: list[str]) -> list[int | None]:
    """The sliding window that the configuration gives each layer that attends."""
    window = _window(text_config(model))
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
