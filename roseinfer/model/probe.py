"""The load probe: does the engine compute for this model what the model itself would?

The engine replaces a model's attention, or with the compiled decoder all of it. Three checks,
cheapest first:

1. the configuration names no kind of layer that the engine lacks;
2. a tiny forward pass shows that each layer calls attention once, and with what;
3. two short sequences, packed and cut into chunks, give the logits that the model's own attention
   gives for each sequence alone.

A wrong answer is worse than a refusal: the first two raise UnsupportedModel, and whoever asks for
the third must not use what fails it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rose.errors import UnsupportedModel
from rose.sampling import SamplingParams
from roseinfer.kv_cache.cache import KVCache, LayerShape
from roseinfer.model.attention import IMPLEMENTATION, AttentionCall, bind_everywhere, unbind
from roseinfer.model.limits import model_type, text_config, vocab_size
from roseinfer.model.runner import Runner
from roseinfer.sessions.chunk import Chunk
from roseinfer.sessions.session import InferenceSession
from roseinfer.text.detokenizer import TextStream

#: Why a model is refused whose attention cannot be replaced.
BYPASSED = "its layers bypass transformers' attention interface"

_LAYER_TYPES = {"full_attention", "sliding_attention"}

# Two sequences, and the chunk of each that every step computes. Between them: packing, a chunk
# that continues another, a decode batch of two, contexts longer than a block.
_CHUNKS = ((4, 1), (2, 17), (1, 1))
_LENGTHS = tuple(sum(lengths) for lengths in zip(*_CHUNKS, strict=True))
PROBE_TOKENS = max(_LENGTHS)  # of the longest sequence
_BLOCK_SIZE = 8

# The mean over all tokens of the relative error of their logits. Rounding stays below; attending
# to one wrong key does not.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6, torch.float16: 3e-2}
_DEFAULT_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class LayerCall:
    """How a layer calls attention; see AttentionCall."""

    module: nn.Module
    shape: LayerShape
    window: int | None
    scaling: float
    softcap: float | None
    has_sinks: bool


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


# 1. The configuration


def _check_config(model: Any) -> None:
    config = text_config(model)
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    if unknown:
        raise refuse(model, f"it has layers of type {', '.join(unknown)}")
    if getattr(config, "attention_chunk_size", None):
        raise refuse(model, "its attention is chunked")


# 2. The calls


@dataclass(slots=True)
class _Recorder:
    """Answers attention calls with zeros and remembers them."""

    calls: list[LayerCall] = field(default_factory=list)

    def attend(self, call: AttentionCall) -> Tensor:
        shape = LayerShape(call.key.shape[1], call.key.shape[3], call.value.shape[3])
        sinks = call.sinks is not None
        self.calls.append(
            LayerCall(call.module, shape, call.window, call.scaling, call.softcap, sinks)
        )
        heads, tokens = call.query.shape[1:3]
        return call.query.new_zeros(1, tokens, heads, shape.value_dim)


@torch.inference_mode()
def _record_calls(model: Any) -> list[LayerCall]:
    recorder = _Recorder()
    bind_everywhere(model, recorder)
    ids = _token_ids(model, 3)
    positions = torch.arange(3, device=model.device)
    try:
        model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
    except Exception as error:
        raise refuse(model, f"a packed forward pass failed: {_one_line(error)}") from error
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
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return [window if layer == "sliding_attention" else None for layer in types]


# 3. The logits


class Reference:
    """Logits as the model's own code and attention give them, before anything is replaced."""

    def __init__(self, model: Any) -> None:
        """Raises UnsupportedModel if the model cannot be run at all."""
        self._model = model
        self._sequences = [_token_ids(model, length, salt=i) for i, length in enumerate(_LENGTHS)]
        self.tolerance = _TOLERANCE.get(model.dtype, _DEFAULT_TOLERANCE)
        try:
            self._logits = _reference_logits(model, self._sequences)
        except Exception as error:
            raise refuse(model, f"the probe's forward pass failed: {_one_line(error)}") from error
        if not bool(self._logits.isfinite().all()):
            dtype = str(model.dtype).removeprefix("torch.")
            raise refuse(
                model,
                f"its own logits in {dtype} are not finite: a weight is damaged (NaN or infinite), "
                "or its values are too large for this dtype",
            )

    def error(self, runner: Runner, layers: AttentionLayers) -> float:
        """The mean relative error of the logits of `runner`, which is left unbound.

        Raises UnsupportedModel if it fails altogether.
        """
        try:
            ours = _packed_logits(self._model, runner, layers, self._sequences)
        except Exception as error:
            reason = f"the probe's forward pass failed: {_one_line(error)}"
            raise refuse(self._model, reason) from error
        errors = (ours - self._logits).norm(dim=-1) / self._logits.norm(dim=-1).clamp_min(1e-6)
        return float(errors.mean())


def _packed_logits(
    model: Any, runner: Runner, layers: AttentionLayers, sequences: list[Tensor]
) -> Tensor:
    """Logits [sum of lengths, V] as the engine computes them, sequence after sequence."""
    num_blocks = 1 + sum(-(-length // _BLOCK_SIZE) for length in _LENGTHS)
    cache = KVCache(
        layers.shapes,
        num_blocks,
        _BLOCK_SIZE,
        device=model.device,
        dtype=model.dtype,
        padding=runner.cache_padding,
    )
    runner.bind(cache)
    sessions = [_session(ids, cache) for ids in sequences]
    parts: list[list[Tensor]] = [[] for _ in sessions]
    for counts in _CHUNKS:
        chunks = [Chunk(s, count) for s, count in zip(sessions, counts, strict=True)]
        order, logits = runner.run(chunks, every_row=True)
        start = 0
        for chunk in order:
            rows = logits[start : start + chunk.count].float()
            parts[sessions.index(chunk.session)].append(rows)
            chunk.session.computed += chunk.count
            start += chunk.count
    return torch.cat([logits for part in parts for logits in part])


@torch.inference_mode()
def _reference_logits(model: Any, sequences: list[Tensor]) -> Tensor:
    """The logits from the model's own attention, each sequence by itself."""
    model.set_attn_implementation("eager")
    try:
        return torch.cat([model(input_ids=ids[None]).logits[0].float() for ids in sequences])
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


def _session(ids: Tensor, cache: KVCache) -> InferenceSession:
    tokens = [int(i) for i in ids.tolist()]
    session = InferenceSession(
        "probe", tokens, SamplingParams(), TextStream(None), context_length=len(tokens)
    )
    session.blocks = cache.pool.allocate(session.blocks_wanted(len(tokens), cache.block_size))
    return session


def _token_ids(model: Any, length: int, salt: int = 0) -> Tensor:
    """Arbitrary ids, the same at every load."""
    vocab = vocab_size(model)
    ids = [(1 + 7919 * (salt + 1) * (i + 1)) % vocab for i in range(length)]
    return torch.tensor(ids, device=model.device)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
