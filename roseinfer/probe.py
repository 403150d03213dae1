"""The load probe: does the engine compute for this model what the model itself would?

Attention is the only part of a model that the engine replaces, and it can only replace calls that
go through transformers' attention interface and mean what they say. Three checks, cheapest first:

1. the configuration names no kind of layer that the engine lacks;
2. a tiny forward pass shows that each layer calls the engine once, and what windows it passes;
3. two short sequences, packed and cut into chunks, give the logits that the model's own attention
   gives for each sequence alone.

A wrong answer is worse than a refusal: every failure raises UnsupportedModel.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rose_errors import UnsupportedModel
from roseinfer.attention import IMPLEMENTATION, AttentionCall, bind_everywhere, unbind
from roseinfer.batch import Chunk
from roseinfer.kv_cache import KVCache, LayerShape
from roseinfer.limits import model_type, text_config, vocab_size
from roseinfer.model import PackedModel
from roseinfer.sampling import SamplingParams
from roseinfer.session import InferenceSession
from roseinfer.text import TextStream

_LAYER_TYPES = {"full_attention", "sliding_attention"}

# Two sequences, and the chunk of each that every step computes. Between them: packing, a chunk
# that continues another, a decode batch of two, contexts longer than a block.
_CHUNKS = ((4, 1), (2, 17), (1, 1))
_LENGTHS = tuple(sum(lengths) for lengths in zip(*_CHUNKS, strict=True))
_BLOCK_SIZE = 8

# The mean over all tokens of the relative error of their logits. Rounding stays below; attending
# to one wrong key does not.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6, torch.float16: 3e-2}
_DEFAULT_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """The attention modules of a model, in the order in which a forward pass calls them."""

    modules: list[nn.Module]
    shapes: list[LayerShape]


def probe(model: Any) -> AttentionLayers:
    """Find the attention layers of `model`, or raise UnsupportedModel with the reason.

    The model must be in evaluation mode, its attention set to IMPLEMENTATION.
    """
    _check_config(model)
    try:
        calls = _record_calls(model)
        _check_calls(model, calls)
        layers = AttentionLayers([call.module for call in calls], [call.shape for call in calls])
        _check_logits(model, layers)
    finally:
        unbind(model)
    return layers


def _refuse(model: Any, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"model type {model_type(model)!r} is not supported: {reason}")


# 1. The configuration


def _check_config(model: Any) -> None:
    config = text_config(model)
    odd = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    if odd:
        raise _refuse(model, f"it has layers of type {', '.join(odd)}")
    if getattr(config, "attention_chunk_size", None):
        raise _refuse(model, "its attention is chunked")


# 2. The calls


@dataclass(slots=True)
class _Call:
    module: nn.Module
    shape: LayerShape
    window: int | None


@dataclass(slots=True)
class _Recorder:
    """Answers attention calls with zeros and remembers them."""

    calls: list[_Call] = field(default_factory=list)

    def attend(self, call: AttentionCall) -> Tensor:
        shape = LayerShape(call.key.shape[1], call.key.shape[3], call.value.shape[3])
        self.calls.append(_Call(call.module, shape, call.window))
        heads, tokens = call.query.shape[1:3]
        return call.query.new_zeros(1, tokens, heads, shape.value_dim)


@torch.inference_mode()
def _record_calls(model: Any) -> list[_Call]:
    recorder = _Recorder()
    bind_everywhere(model, recorder)
    ids = _token_ids(model, 3)
    positions = torch.arange(3, device=model.device)
    try:
        model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
    except Exception as error:
        raise _refuse(model, f"a packed forward pass failed: {_one_line(error)}") from error
    return recorder.calls


def _check_calls(model: Any, calls: list[_Call]) -> None:
    layers = getattr(text_config(model), "num_hidden_layers", None)
    if not calls:
        raise _refuse(model, "its layers bypass transformers' attention interface")
    if len({id(call.module) for call in calls}) != len(calls):
        raise _refuse(model, "an attention module is called more than once in a forward pass")
    if layers is not None and len(calls) != layers:
        raise _refuse(model, f"only {len(calls)} of its {layers} layers are attention layers")
    for index, (call, window) in enumerate(zip(calls, _windows(model, len(calls)), strict=True)):
        if call.window != window:
            raise _refuse(
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
    return [window if kind == "sliding_attention" else None for kind in types]


# 3. The logits


@torch.inference_mode()
def _check_logits(model: Any, layers: AttentionLayers) -> None:
    sequences = [_token_ids(model, length, salt=i) for i, length in enumerate(_LENGTHS)]
    try:
        ours = _packed_logits(model, layers, sequences)
        theirs = _reference_logits(model, sequences)
    except Exception as error:
        raise _refuse(model, f"the probe's forward pass failed: {_one_line(error)}") from error
    errors = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-6)
    mean = float(errors.mean())
    tolerance = _TOLERANCE.get(model.dtype, _DEFAULT_TOLERANCE)
    if not mean <= tolerance:
        raise _refuse(
            model,
            f"the engine's logits differ from the model's own (relative error {mean:.2g}, "
            f"tolerated {tolerance:g})",
        )


def _packed_logits(model: Any, layers: AttentionLayers, sequences: list[Tensor]) -> Tensor:
    """Logits [sum of lengths, V] as the engine computes them, sequence after sequence."""
    num_blocks = 1 + sum(-(-length // _BLOCK_SIZE) for length in _LENGTHS)
    cache = KVCache(layers.shapes, num_blocks, _BLOCK_SIZE, device=model.device, dtype=model.dtype)
    packed = PackedModel(model, layers.modules, cache)
    sessions = [_session(ids, cache) for ids in sequences]
    parts: list[list[Tensor]] = [[] for _ in sessions]
    for counts in _CHUNKS:
        chunks = [Chunk(s, count) for s, count in zip(sessions, counts, strict=True)]
        batch = packed.pack(chunks)
        rows = torch.arange(batch.input_ids.shape[1], device=model.device)
        logits = packed.forward(dataclasses.replace(batch, logit_rows=rows)).float()
        start = 0
        for chunk in batch.order:
            parts[sessions.index(chunk.session)].append(logits[start : start + chunk.count])
            chunk.session.computed += chunk.count
            start += chunk.count
    return torch.cat([logits for part in parts for logits in part])


def _reference_logits(model: Any, sequences: list[Tensor]) -> Tensor:
    """The same logits from the model's own attention, each sequence by itself."""
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
