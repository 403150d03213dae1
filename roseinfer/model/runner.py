"""Runners: they compute packed batches, write keys and values to the cache and return logits.

The compiled decoder (roseinfer/native) runs the common families on CPU, the fused one
(roseinfer/gpu) on a GPU, and `PackedModel` runs transformers' own code for every other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.packed_batch import StepInputs
from roseinfer.model.routes import FollowedRoutes
from roseinfer.sessions.session import Chunk, DeviceTokens


class Runner(Protocol):
    """A model that computes steps over a KV cache."""

    cache_padding: int  # see KVCache
    compacts: bool
    """whether the cache is for `AttentionLayers.compacted`"""
    runs_ahead: bool
    """whether it takes tokens that only the device knows"""
    batch_invariant: bool
    """whether a token's logits are the same bits with whatever tokens it is computed"""

    @property
    def eager(self) -> Runner:
        """The runner of the same model without CUDA graphs; itself where it has none."""

    def bind(self, cache: KVCache) -> None:
        """Use `cache` from now on."""

    def run(
        self,
        chunks: Sequence[Chunk],
        *,
        every_row: bool = False,
        device_tokens: DeviceTokens | None = None,
        routes: FollowedRoutes | None = None,
    ) -> tuple[list[Chunk], Tensor]:
        """Compute the KV of `chunks`; returns them in row order, and logits.

        Logits are [S, V] for the S rows that the chunks want, or [T, V] for every row; rows beyond
        that are padding. `device_tokens` has the tokens that only the device
        knows; it is never given to a runner that does not run ahead. `routes` has the experts to
        take, on a CPU, with every row.
        """


class PackedRunner(ABC):
    """Lays a step out as one packed batch and computes it in one forward pass."""

    cache_padding = 1
    compacts = False
    runs_ahead = True
    batch_invariant = False

    @property
    def eager(self) -> Runner:
        return self

    @abstractmethod
    def bind(self, cache: KVCache) -> None:
        """Use `cache` from now on."""

    @abstractmethod
    def pack(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> StepInputs:
        """Lay out `chunks` as `compute` reads them."""

    @abstractmethod
    def compute(self, batch: Any, rows: Tensor) -> Tensor:
        """One forward pass over what `pack` made; the logits of `rows`."""

    @torch.inference_mode()
    def run(
        self,
        chunks: Sequence[Chunk],
        *,
        every_row: bool = False,
        device_tokens: DeviceTokens | None = None,
        routes: FollowedRoutes | None = None,
    ) -> tuple[list[Chunk], Tensor]:
        batch = self.pack(chunks, device_tokens)
        rows = batch.logit_rows
        if every_row:
            rows = torch.arange(batch.input_ids.shape[1], device=rows.device)
        if routes is None:
            return batch.order, self.compute(batch, rows)
        with routes.replayed(batch.order):
            return batch.order, self.compute(batch, rows)
