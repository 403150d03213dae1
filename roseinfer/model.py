"""A transformers model run on packed batches over the paged cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from roseinfer.attention import PagedAttention, bind
from roseinfer.batch import Chunk, PackedBatch, pack
from roseinfer.kv_cache import KVCache


class PackedModel:
    """Runs packed batches through `model`, whose attention layers are `layers`, in call order."""

    def __init__(self, model: Any, layers: list[nn.Module], cache: KVCache) -> None:
        self.cache = cache
        self._model = model
        self._attention = PagedAttention(cache)
        bind(layers, self._attention.layers)
        self._keeps_logits = accepts_logits_to_keep(model)

    def pack(self, chunks: Sequence[Chunk]) -> PackedBatch:
        return pack(chunks, self.cache.block_size, self._model.device)

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits [S, V] for the batch's `logit_rows`. Writes the KV of all rows to the cache."""
        arguments = {"logits_to_keep": batch.logit_rows} if self._keeps_logits else {}
        self._attention.batch = batch
        try:
            output = self._model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                use_cache=False,
                **arguments,
            )
        finally:
            self._attention.batch = None
        logits: Tensor = output.logits[0]
        return logits if self._keeps_logits else logits[batch.logit_rows]


def accepts_logits_to_keep(model: Any) -> bool:
    """Whether the model's forward can compute the logits of chosen rows only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters
