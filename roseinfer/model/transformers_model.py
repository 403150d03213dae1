"""Runs transformers' own code over packed batches: for models that no decoder of ours computes."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.attention import Attention, PagedAttention, bind
from roseinfer.model.attention_layers import AttentionLayers
from roseinfer.model.packed_batch import StepInputs
from roseinfer.model.runner import PackedRunner
from roseinfer.model.state_layers import Recur, StateLayers, plug_in, recur_in_torch
from roseinfer.sessions.session import Chunk, DeviceTokens


class PackedModel(PackedRunner):
    """Runs packed batches through `model`, whose layers are `layers`."""

    def __init__(
        self,
        model: Any,
        layers: AttentionLayers,
        attention: Callable[[KVCache], Attention] = PagedAttention,
        recur: Recur = recur_in_torch,
    ) -> None:
        """`attention` makes the attention layers for a cache; `recur` computes recurrences."""
        self._model, self._layers = model, layers
        self._keeps_logits = accepts_logits_to_keep(model)
        self._make_attention, self._recur = attention, recur
        self._attention: Attention | None = None
        self._states: StateLayers | None = None

    def bind(self, cache: KVCache) -> None:
        self._attention = self._make_attention(cache)
        bind(self._layers.modules, self._attention.layers)
        if self._layers.mixers:
            self._states = StateLayers(cache, self._recur)
            for mixer, layer in zip(self._layers.mixers, self._states.layers, strict=True):
                plug_in(mixer, layer)

    def pack(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> StepInputs:
        return self._bound().pack(chunks, device_tokens)

    def compute(self, batch: Any, rows: Tensor) -> Tensor:
        attention = self._bound()
        attention.batch = batch
        if self._states is not None:
            self._states.begin(batch.order)
        try:
            return self._logits(batch, rows)
        finally:
            attention.batch = None
            if self._states is not None:
                self._states.batch = None

    def _logits(self, batch: StepInputs, rows: Tensor) -> Tensor:
        arguments = {"logits_to_keep": rows} if self._keeps_logits else {}
        output = self._model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            use_cache=False,
            **arguments,
        )
        logits: Tensor = output.logits[0]
        return logits if self._keeps_logits else logits[rows]

    def _bound(self) -> Attention:
        if self._attention is None:
            raise RuntimeError("a step was asked for before `bind` gave a cache")
        return self._attention


def accepts_logits_to_keep(model: Any) -> bool:
    """Whether the model's forward can compute the logits of chosen rows only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters
