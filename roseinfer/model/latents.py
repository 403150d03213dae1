"""Latent attention in transformers' models: keys and values are made of one latent for each token.

The compiled decoder keeps the latents: it multiplies queries with the matrix that would make keys
of them, and what attention makes of latents with the one that would make values.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from roseinfer.kv_cache.cache import LayerShape
from roseinfer.model.linears import PartOfHeads, children


@dataclass(frozen=True, slots=True)
class LatentParts:
    """What a layer has beside the matrices that make queries, or what these are made of, and
    latents."""

    heads: int
    query: list[Any]
    """The linear layer that makes queries, if they have a latent too"""
    query_norm: Tensor | None
    """float32, of that"""
    norm: Tensor
    """float32, of the latent"""
    epsilon: float
    keys: PartOfHeads
    """[heads * latent, unrotated], transposed to what makes keys"""
    values: PartOfHeads
    """[heads * values, latent]"""

    @property
    def fused_linears(self) -> list[list[Any]]:
        return [linears for linears in (self.query, [self.keys], [self.values]) if linears]


def has_latents(attention: Any) -> bool:
    names = ("kv_a_proj_with_mqa", "kv_b_proj", "kv_lora_rank", "qk_rope_head_dim")
    return all(hasattr(attention, name) for name in names)


def latent_shape(attention: Any) -> LayerShape | None:
    """What the cache has of a token where it keeps latents; None: the layer has none."""
    if not has_latents(attention):
        return None
    rank = int(attention.kv_lora_rank)
    return LayerShape(1, rank + int(attention.qk_rope_head_dim), rank)


def find_latents(attention: Any) -> tuple[list[Any], LatentParts]:
    """The linear layers that read hidden states, and the other parts."""
    heads, unrotated = attention.num_heads, attention.qk_nope_head_dim
    whole, values = attention.kv_b_proj, attention.v_head_dim
    queries = getattr(attention, "q_proj", None)
    first = children(attention, ("q_a_proj",)) if queries is None else [queries]
    norm = attention.kv_a_layernorm
    query_norm = attention.q_a_layernorm if queries is None else None
    return [*first, attention.kv_a_proj_with_mqa], LatentParts(
        heads=heads,
        query=[attention.q_b_proj] if queries is None else [],
        query_norm=None if query_norm is None else query_norm.weight.detach().float().clone(),
        norm=norm.weight.detach().float().clone(),
        epsilon=float(norm.variance_epsilon),
        keys=PartOfHeads(whole, heads, 0, unrotated, is_transposed=True),
        values=PartOfHeads(whole, heads, unrotated, unrotated + values),
    )
