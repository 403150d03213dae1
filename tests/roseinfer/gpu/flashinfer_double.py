"""Stands in for FlashInfer where there is none: its wrapper's arguments and meaning, in float64.

Written after the documentation and signatures of flashinfer-python 0.7.2.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor


class BatchPrefillWithPagedKVCacheWrapper:
    made = 0
    plans = 0

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert kv_layout == "NHD"
        assert float_workspace_buffer.dtype == torch.uint8
        type(self).made += 1

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
    ) -> None:
        integers = qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        assert all(tensor.dtype == torch.int32 for tensor in integers)
        assert all(t.device.type == "cpu" for t in (qo_indptr, paged_kv_indptr))
        assert causal
        self.starts, self.pages_at, self.pages, self.last = (t.tolist() for t in integers)
        self.heads, self.kv_heads, self.dim = num_qo_heads, num_kv_heads, head_dim_qk
        self.page_size, self.scale, self.window = page_size, sm_scale, window_left
        self.softcap, self.types = logits_soft_cap or 0.0, (q_data_type, kv_data_type)
        type(self).plans += 1

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
        keys, values = paged_kv_cache
        assert (q.dtype, keys.dtype) == self.types
        assert q.shape == out.shape == (self.starts[-1], self.heads, self.dim)
        assert keys.shape[1:] == (self.page_size, self.kv_heads, self.dim)
        for number, start in enumerate(self.starts[:-1]):
            stop = self.starts[number + 1]
            pages = self.pages[self.pages_at[number] : self.pages_at[number + 1]]
            length = (len(pages) - 1) * self.page_size + self.last[number]
            found = (cache[pages].flatten(0, 1)[:length].double() for cache in (keys, values))
            out[start:stop] = self._attend(q[start:stop].double(), *found).to(out.dtype)
        return out

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        group = self.heads // self.kv_heads
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query, keys) * self.scale
        if self.softcap > 0:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        at = torch.arange(len(keys))
        own = at[len(keys) - len(query) :, None]
        hidden = at > own
        if self.window >= 0:
            hidden |= at < own - self.window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, values)


def module() -> Any:
    """A fresh one, its counts at 0."""

    class Wrapper(BatchPrefillWithPagedKVCacheWrapper):
        made = plans = 0

    made: Any = ModuleType("flashinfer")
    made.BatchPrefillWithPagedKVCacheWrapper = Wrapper
    return made
