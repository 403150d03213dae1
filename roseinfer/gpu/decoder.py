"""A decoder of a common family with its small operations fused.

    few rows     norm | qkv | norms + rotation + write | attend | reduce | output + sum |
                 norm | gate and up + activation | down + sum
    many rows    sum + norm | qkv | norms + rotation + write | attend | output | sum + norm |
                 gate and up | activation | down

Each part is a kernel; with many rows torch's library computes the products. transformers' code
launches some forty kernels for the same layer. On a GPU each launch costs microseconds, as much as
a whole product of a small batch. The weights are shared with the model: matrices with the same
input are stored as one, and the model's layers become views of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from roseinfer.gpu.attention import AttentionParams, attend
from roseinfer.gpu.batch import DeviceBatch, DeviceCache
from roseinfer.gpu.layers import Heads, apply_rope_and_store
from roseinfer.gpu.residual import residual_stream
from roseinfer.gpu.skinny_gemm import Matrix
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.attention_layers import AttentionLayers, LayerCall
from roseinfer.model.families import Activation, LayerParts, NormPart, Parts, find_parts
from roseinfer.model.linears import join_biases, weight_of
from roseinfer.model.runner import PackedRunner
from roseinfer.sessions.session import Chunk, DeviceTokens


def build_fused(model: Any, layers: AttentionLayers, context: int) -> FusedModel | None:
    """A fused decoder for `model`, contexts up to `context` tokens; None for other families."""
    parts = find_parts(model, layers)
    if parts is None or _is_beyond(parts, layers):
        return None
    return FusedModel(parts, layers, context)


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix
    before_attention: NormPart
    after_attention: NormPart | None
    before_mlp: NormPart
    after_mlp: NormPart | None
    heads: Heads
    params: AttentionParams


class FusedModel(PackedRunner):
    """Steps of packed batches by the kernels of this package."""

    def __init__(self, parts: Parts, layers: AttentionLayers, context: int) -> None:
        self._embedding: Tensor = parts.embedding.weight.detach()
        self._positions = None if parts.positions is None else parts.positions.weight.detach()
        self._scale, self._softcap = parts.embedding_scale, parts.logit_softcap
        self._dtype = self._embedding.dtype
        angles = _Angles(parts, context, self._embedding.device)
        self._layers = [
            _layer(part, call, parts, angles)
            for part, call in zip(parts.layers, layers.calls, strict=True)
        ]
        self._last, self._head = parts.last, _fuse([parts.head])
        self._cache: DeviceCache | None = None

    def bind(self, cache: KVCache) -> None:
        self._cache = DeviceCache(cache)

    def pack(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> DeviceBatch:
        return self._bound().pack(chunks, device_tokens)

    def compute(self, batch: DeviceBatch, rows: Tensor) -> Tensor:
        positions = batch.position_ids[0]
        stream = residual_stream(self._embed(batch.input_ids[0], positions), self._dtype)
        for layer, pages in zip(self._layers, self._bound().pages, strict=True):
            qkv = stream.project(layer.before_attention, layer.qkv)
            query = apply_rope_and_store(qkv, layer.heads, pages, batch.slots, positions)
            attended = attend(pages, query, batch.sequences, layer.params).flatten(1)
            stream.add(attended, layer.output, layer.after_attention)
            inner = stream.project(layer.before_mlp, layer.gate_up)
            stream.add(inner, layer.down, layer.after_mlp)
        last = residual_stream(stream.sum()[rows], self._dtype)
        logits = last.project(self._last, self._head)
        if self._softcap:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def _bound(self) -> DeviceCache:
        if self._cache is None:
            raise RuntimeError("a step was asked for before `bind` gave a cache")
        return self._cache

    def _embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """[T, H], float32."""
        hidden = F.embedding(ids, self._embedding).float()
        if self._scale != 1.0:
            hidden *= self._scale
        if self._positions is not None:
            hidden += F.embedding(positions, self._positions)
        return hidden


class _Angles:
    """Cosines and sines on the device, once for each type of layer."""

    def __init__(self, parts: Parts, context: int, device: torch.device) -> None:
        self._tables: dict[str, tuple[Tensor, Tensor]] = {}
        if parts.angles is not None:
            for layer_type in {part.layer_type for part in parts.layers}:
                cosines, sines = parts.angles(layer_type, context)
                self._tables[layer_type] = cosines.to(device), sines.to(device)

    def of(self, layer_type: str) -> tuple[Tensor, Tensor] | tuple[None, None]:
        return self._tables.get(layer_type, (None, None))


def _is_beyond(parts: Parts, layers: AttentionLayers) -> bool:
    """The kernels compute no branch without a norm before it, no experts, sinks, latents, states,
    scales of queries or norms behind their rotation."""
    return (
        bool(parts.mixers)
        or parts.latents is not None
        or parts.inputs is not None
        or parts.query_scales is not None
        or parts.norms_rotated
        or any(part.value is not None or part.scale is not None for part in parts.layers)
        or len(set(layers.shapes)) > 1
        or parts.activation not in (Activation.SILU, Activation.GELU_TANH)
        or parts.norms_by_head
        or parts.norms_rows
        or parts.rotates_neighbours
        or parts.parallel
        or any(part.before_attention is None or part.before_mlp is None for part in parts.layers)
        or any(part.experts is not None for part in parts.layers)
        or any(call.sinks is not None for call in layers.calls)
    )


def _layer(part: LayerParts, call: LayerCall, parts: Parts, angles: _Angles) -> _Layer:
    if part.before_attention is None or part.before_mlp is None:
        raise ValueError("the kernels compute no branch without a norm before it")
    output, norms, epsilon = _fuse([part.output]), None, 0.0
    if part.query is not None and part.key is not None:
        norms, epsilon = torch.stack([part.query.weight, part.key.weight]), part.query.epsilon
    queries = output.weight.shape[1] // call.shape.value_dim
    gate_up = replace(_fuse(part.gate_up), activation=parts.activation, gated=parts.gated)
    return _Layer(
        _fuse(part.qkv),
        output,
        gate_up,
        _fuse([part.down]),
        part.before_attention,
        part.after_attention,
        part.before_mlp,
        part.after_mlp,
        Heads(queries, norms, epsilon, *angles.of(part.layer_type)),
        AttentionParams(call.scaling, call.window, call.softcap),
    )


def _fuse(linears: list[Any]) -> Matrix:
    """The linear layers' weights as one matrix; the layers become views of it."""
    weights = [weight_of(linear).detach() for linear in linears]
    whole = torch.cat(weights) if len(weights) > 1 else weights[0].contiguous()
    for linear, part in zip(linears, torch.split(whole, [len(w) for w in weights]), strict=True):
        linear.weight.data = part.T if type(linear) is Conv1D else part
    return Matrix(whole, join_biases(weights, [linear.bias for linear in linears]))
