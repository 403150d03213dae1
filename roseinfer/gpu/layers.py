"""Launches of the kernels between matrix products: norms, rotary embedding, activations.

The residual stream `hidden` [T, H] is float32; inputs of a product have the weights' dtype.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.gpu.attention import Pages
from roseinfer.gpu.device import cdiv, device_guard, multiprocessors, next_power_of_2
from roseinfer.gpu.kernels.layers import activate_kernel, norm_kernel, rope_kernel
from roseinfer.model.families import Activation, NormPart

_WIDE = 2048  # from so many elements on, more warps share a row


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a layer, and what is applied to queries and keys.

    `norms` [2, D] are RMS norms of queries and of keys, or None. `cosines` and `sines`
    [positions, rotary / 2] turn the pairs (i, i + rotary / 2) of a head, or are None.
    """

    queries: int
    norms: Tensor | None
    epsilon: float
    cosines: Tensor | None
    sines: Tensor | None

    @property
    def rotary(self) -> int:
        return 0 if self.cosines is None else 2 * self.cosines.shape[1]


def residual_norm(
    hidden: Tensor,
    norm: NormPart | None,
    dtype: torch.dtype,
    *,
    delta: Tensor | None = None,
    after: NormPart | None = None,
) -> Tensor:
    """`hidden` [T, H] through `norm`, as `dtype`.

    First `delta` [T, H], through the norm `after` if there is one, is added to `hidden` in place.
    Without `norm` that is all, and `hidden` is returned.
    """
    rows, width = hidden.shape
    out = hidden if norm is None else hidden.new_empty(rows, width, dtype=dtype)
    some = norm or after
    with device_guard(hidden):
        norm_kernel[(rows,)](
            hidden,
            hidden if delta is None else delta,
            hidden if after is None else after.weight,
            hidden if norm is None else norm.weight,
            hidden if norm is None or norm.bias is None else norm.bias,
            out,
            0.0 if some is None else some.epsilon,
            HIDDEN=width,
            HAS_DELTA=delta is not None,
            HAS_AFTER=after is not None,
            HAS_NORM=norm is not None,
            HAS_BIAS=norm is not None and norm.bias is not None,
            BLOCK=next_power_of_2(width),
            num_warps=8 if width >= _WIDE else 4,
        )
    return out


def apply_rope_and_store(
    qkv: Tensor, heads: Heads, pages: Pages, slots: Tensor, positions: Tensor
) -> Tensor:
    """The queries [T, heads, D] of `qkv` [T, width]; keys and values go to their `slots` [T].

    Queries and keys are normed and rotated by their `positions` [T].
    """
    tokens, (kv_heads, key_dim), value_dim = len(qkv), pages.keys.shape[1:], pages.values.shape[2]
    query = qkv.new_empty(tokens, heads.queries, key_dim)
    all_heads = heads.queries + 2 * kv_heads
    # Few tokens leave multiprocessors idle: then each token has its own programs.
    block = 1 if tokens * all_heads <= 16 * multiprocessors(qkv.device) else 8
    with device_guard(qkv):
        rope_kernel[(cdiv(tokens, block), all_heads)](
            qkv,
            query,
            pages.keys,
            pages.values,
            slots,
            positions,
            qkv if heads.norms is None else heads.norms,
            qkv if heads.cosines is None else heads.cosines,
            qkv if heads.sines is None else heads.sines,
            tokens,
            qkv.stride(0),
            heads.epsilon,
            QUERIES=heads.queries,
            KV_HEADS=kv_heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            ROTARY=heads.rotary,
            HAS_NORMS=heads.norms is not None,
            BLOCK_T=block,
            BLOCK_KD=next_power_of_2(key_dim),
            BLOCK_VD=next_power_of_2(value_dim),
            num_warps=1 if block == 1 else 4,
        )
    return query


def apply_activation(x: Tensor, gated: bool, activation: Activation) -> Tensor:
    """`x` [T, inner], or [T, 2 * inner] with gates first, after its activation: [T, inner]."""
    rows, inner = len(x), x.shape[1] // (2 if gated else 1)
    out = x.new_empty(rows, inner)
    block = min(next_power_of_2(inner), 1024)
    with device_guard(x):
        activate_kernel[(rows, cdiv(inner, block))](
            x, out, INNER=inner, GATED=gated, ACTIVATION=int(activation), BLOCK=block
        )
    return out
