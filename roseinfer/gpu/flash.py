"""Prefill by FlashInfer, an optional package whose kernels are written for each kind of GPU.

Decode stays with our own kernel: FlashInfer plans each step on the host, which no CUDA graph holds.
A plan is for one way of attending (window, soft cap, scale), and serves all layers that share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import flashinfer
import torch
from torch import Tensor

from roseinfer.batch import Chunk
from roseinfer.device_transfer import pinned, to_device
from roseinfer.gpu.attention import Pages, Rule

_WORKSPACE_BYTES = 128 * 1024**2  # what its documentation recommends
_HEAD_SIZES = (64, 128, 256)
_DTYPES = (torch.float16, torch.bfloat16)


class _Step(NamedTuple):
    """The prefill chunks of a step: int32, on the host but for the pages."""

    query_starts: Tensor  # [B + 1]
    page_starts: Tensor  # [B + 1]
    pages: Tensor
    last_page_lengths: Tensor  # [B]


class _Way(NamedTuple):
    """What a plan is made for."""

    heads: int
    kv_heads: int
    dim: int
    scaling: float
    window: int | None
    softcap: float | None


class FlashPrefill:
    """The prefill attention of one KV cache."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self._block_size, self._device = block_size, device
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[_Way, Any] = {}
        self._planned: set[_Way] = set()
        self._step: _Step | None = None

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Lay out the chunks of a step, in the order of their rows."""
        ends = [chunk.end for chunk in chunks]
        counts = [-(-end // self._block_size) for end in ends]
        blocks = [
            block
            for chunk, count in zip(chunks, counts, strict=True)
            for block in chunk.session.blocks[:count]
        ]
        self._step = _Step(
            self._numbers(accumulate((chunk.count for chunk in chunks), initial=0)),
            self._numbers(accumulate(counts, initial=0)),
            to_device(torch.tensor(blocks, dtype=torch.int32), self._device),
            self._numbers((end - 1) % self._block_size + 1 for end in ends),
        )
        self._planned.clear()

    def _numbers(self, numbers: Iterable[int]) -> Tensor:
        """On the host: FlashInfer plans with them there, and copies them."""
        return pinned(torch.tensor(list(numbers), dtype=torch.int32), self._device)

    def takes(self, pages: Pages, rule: Rule) -> bool:
        """Whether FlashInfer has this attention."""
        dim = pages.keys.shape[2]
        return (
            rule.sinks is None
            and dim in _HEAD_SIZES
            and pages.values.shape[2] == dim
            and pages.keys.dtype in _DTYPES
        )

    def attend(self, pages: Pages, query: Tensor, out: Tensor, rule: Rule) -> None:
        """What `query` [T, query heads, D], the rows of the step's chunks, find: into `out`."""
        kv_heads, dim = pages.keys.shape[1:]
        way = _Way(query.shape[1], kv_heads, dim, rule.scaling, rule.window, rule.softcap)
        if way not in self._planned:
            self._plan(way, query.dtype, pages.keys.dtype)
        caches = tuple(
            cache.view(-1, self._block_size, kv_heads, dim) for cache in (pages.keys, pages.values)
        )
        self._wrappers[way].run(query, caches, out=out)

    def _plan(self, way: _Way, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
        if self._step is None:
            raise RuntimeError("attention was called outside of an engine step")
        if way not in self._wrappers:
            kind = flashinfer.BatchPrefillWithPagedKVCacheWrapper
            self._wrappers[way] = kind(self._workspace, kv_layout="NHD")
        self._wrappers[way].plan(
            self._step.query_starts,
            self._step.page_starts,
            self._step.pages,
            self._step.last_page_lengths,
            way.heads,
            way.kv_heads,
            way.dim,
            self._block_size,
            causal=True,
            sm_scale=way.scaling,
            # Ours counts the query's own key, FlashInfer's those to the left of it.
            window_left=-1 if way.window is None else way.window - 1,
            logits_soft_cap=way.softcap,
            q_data_type=dtype,
            kv_data_type=cache_dtype,
        )
        self._planned.add(way)
