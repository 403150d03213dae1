"""What runs a model: packed batches in, keys and values to the cache, logits out.

The compiled decoder (roseinfer/native) runs the common families on CPU, and `PackedModel` runs
transformers' own code for every other.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from roseinfer.attention import PagedAttention, bind
from roseinfer.batch import Chunk, pack
from roseinfer.kv_cache import KVCache


class Runner(Protocol):
    """A model that computes steps over a KV cache."""

    cache_padding: int  # see KVCache

    def bind(self, cache: KVCache) -> None:
        """Use `cache` from now on."""

    def run(
        self, chunks: Sequence[Chunk], *, every_row: bool = False
    ) -> tuple[list[Chunk], Tensor]:
        """Compute the KV of `chunks`; returns them in row order, and logits.

        Logits are [S, V] for the S chunks that reach their session's last token, or [T, V] for
        every row; rows beyond that are padding.
        """


class PackedModel:
    """Runs packed batches through `model`, whose attention layers are `layers`, in call order."""

    cache_padding = 1

    def __init__(self, model: Any, layers: list[nn.Module]) -> None:
        self._model, self._layers = model, layers
        self._keeps_logits = accepts_logits_to_keep(model)
        self._attention: PagedAttention | None = None
        self._block_size = 0

    def bind(self, cache: KVCache) -> None:
        self._attention, self._block_size = PagedAttention(cache), cache.block_size
        bind(self._layers, self._attention.layers)

    @torch.inference_mode()
    def run(
        self, chunks: Sequence[Chunk], *, every_row: bool = False
    ) -> tuple[list[Chunk], Tensor]:
        if self._attention is None:
            raise RuntimeError("a step was asked for before `bind` gave a cache")
        batch = pack(chunks, self._block_size, self._model.device)
        if every_row:
            rows = torch.arange(batch.input_ids.shape[1], device=self._model.device)
            batch = dataclasses.replace(batch, logit_rows=rows)
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
        return batch.order, logits if self._keeps_logits else logits[batch.logit_rows]


def accepts_logits_to_keep(model: Any) -> bool:
    """Whether the model's forward can compute the logits of chosen rows only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters
