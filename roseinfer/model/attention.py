"""Attention over the paged cache, plugged into transformers' models.

One function is registered under IMPLEMENTATION. It finds its layer's state on the attention module
that calls it: the engine binds it as `module.rose_attention`. So it needs neither a global nor
keyword arguments, which some models drop. No mask function is registered: transformers then makes
no mask, and each group of queries has its own (see packed_batch.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor, nn
from transformers import AttentionInterface

from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.packed_batch import AttentionGroup, PackedBatch, StepInputs, pack
from roseinfer.sessions.session import Chunk, DeviceTokens

IMPLEMENTATION = "rose_blocks"
_BOUND_AS = "rose_attention"


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's call: query [1, Hq, T, D], key [1, Hkv, T, D], value [1, Hkv, T, Dv]."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None


class LayerState(Protocol):
    """The engine binds it on an attention module; it computes a call's outputs [1, T, Hq, Dv]."""

    def attend(self, call: AttentionCall) -> Tensor: ...


def _rose_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - always None: no mask function is registered
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The signature transformers calls. Sinks may come as an argument or as `module.sinks`."""
    state: LayerState = getattr(module, _BOUND_AS)
    call = AttentionCall(
        module,
        query,
        key,
        value,
        scaling if scaling is not None else query.shape[-1] ** -0.5,
        sliding_window,
        softcap,
        s_aux if s_aux is not None else getattr(module, "sinks", None),
    )
    return state.attend(call), None


AttentionInterface.register(IMPLEMENTATION, _rose_attention)


def bind(modules: list[nn.Module], states: list[LayerState]) -> None:
    """Give each attention module the state its calls will find."""
    for module, state in zip(modules, states, strict=True):
        setattr(module, _BOUND_AS, state)


def bind_everywhere(model: nn.Module, state: LayerState) -> None:
    """Bind one state on every module, before it is known which ones are attention modules."""
    for module in model.modules():
        setattr(module, _BOUND_AS, state)


def unbind(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, _BOUND_AS):
            delattr(module, _BOUND_AS)


class Attention(Protocol):
    """The attention layers of one model over one KV cache; `layers` in call order.

    `batch` is what `pack` made for the step being computed, and None between steps.
    """

    layers: list[LayerState]
    batch: Any

    def pack(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> StepInputs:
        """Lay out `chunks` as the layers read them."""


class PagedAttention:
    """By torch's own attention over gathered blocks."""

    def __init__(self, cache: KVCache) -> None:
        self.batch: PackedBatch | None = None
        self._block_size, self._device = cache.block_size, cache.device
        self.layers: list[LayerState] = [
            _PagedLayer(self, keys, values, cache.block_size)
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ]

    def pack(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> PackedBatch:
        return pack(chunks, self._block_size, self._device, device_tokens)


class _PagedLayer:
    """One layer's slice of the cache: `keys` [slots, Hkv, D], `values` [slots, Hkv, Dv]."""

    def __init__(
        self, owner: PagedAttention, keys: Tensor, values: Tensor, block_size: int
    ) -> None:
        self._owner = owner
        self._keys, self._values = keys, values
        # The same memory by block: gathering whole blocks is cheaper than gathering slots.
        self._key_blocks = keys.view(-1, block_size, *keys.shape[1:])
        self._value_blocks = values.view(-1, block_size, *values.shape[1:])

    def attend(self, call: AttentionCall) -> Tensor:
        batch = self._owner.batch
        if batch is None:
            raise RuntimeError("attention was called outside of an engine step")
        if len(batch.begun):
            # NaN may lie there, of a request that has ended, and 0 * NaN under the mask is NaN.
            self._key_blocks.index_fill_(0, batch.begun, 0)
            self._value_blocks.index_fill_(0, batch.begun, 0)
        self._keys.index_copy_(0, batch.slots, call.key[0].transpose(0, 1).to(self._keys.dtype))
        self._values.index_copy_(0, batch.slots, call.value[0].transpose(0, 1).to(self._keys.dtype))
        query = call.query[0].transpose(0, 1)  # [T, Hq, D]
        out = query.new_zeros(*query.shape[:2], self._values.shape[-1])
        for group in batch.groups:
            out[group.start : group.stop] = self._attend_group(call, query, group)
        return out.unsqueeze(0)

    def _attend_group(self, call: AttentionCall, query: Tensor, group: AttentionGroup) -> Tensor:
        """Attend for one group; [B * n, Hq, Dv].

        The query heads that share a KV head are folded into the query rows, [B, Hkv, G * n, D], so
        that keys and values need not be repeated for them and every kernel can be used.
        """
        rows = query[group.start : group.stop]
        count, kv_heads = group.sequences, self._keys.shape[1]
        share, length = rows.shape[1] // kv_heads, len(rows) // count
        folded = rows.reshape(count, length, kv_heads, share, -1)
        folded = folded.permute(0, 2, 3, 1, 4).reshape(count, kv_heads, share * length, -1)
        view = group.view(call.window, share)
        folded = F.pad(folded, (0, 0, 0, view.mask.shape[2] - share * length))
        keys = _gather(self._key_blocks, view.blocks, count)
        values = _gather(self._value_blocks, view.blocks, count)
        if call.softcap is None and call.sinks is None:
            out = F.scaled_dot_product_attention(
                folded, keys, values, attn_mask=view.mask, scale=call.scaling
            )
        else:
            out = _explicit(call, folded, keys, values, view.mask, length)
        out = (
            out[:, :, : share * length]
            .reshape(count, kv_heads, share, length, -1)
            .permute(0, 3, 1, 2, 4)
        )
        return out.reshape(count * length, kv_heads * share, -1)


def _gather(pages: Tensor, blocks: Tensor, sequences: int) -> Tensor:
    """The blocks [B * W] of `pages` [N, block_size, Hkv, D], as [B, Hkv, W * block_size, D]."""
    return pages.index_select(0, blocks).view(sequences, -1, *pages.shape[2:]).transpose(1, 2)


def _explicit(
    call: AttentionCall, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, length: int
) -> Tensor:
    """Attention written out, for what the fused kernels lack: soft caps and sinks.

    `query` is [B, Hkv, rows, D], its rows head by head, `length` of them each, then padding.
    """
    scores = (query @ keys.transpose(-1, -2)).float() * call.scaling
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    scores = scores.masked_fill(~mask, -torch.inf)
    if call.sinks is None:
        weights = scores.softmax(dim=-1)
    else:
        sinks = _sink_scores(call.sinks, query.shape[1], query.shape[2], length)
        sinks = sinks.expand(len(query), -1, -1, -1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(values.dtype) @ values


def _sink_scores(sinks: Tensor, kv_heads: int, rows: int, length: int) -> Tensor:
    """Sinks [Hq] as a column of scores [1, Hkv, rows, 1].

    A sink is one learnt score per query head that takes part in the softmax and adds no value.
    """
    by_row = sinks.float().view(kv_heads, -1).repeat_interleave(length, dim=1)
    return F.pad(by_row, (0, rows - by_row.shape[1])).view(1, kv_heads, rows, 1)
