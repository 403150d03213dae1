"""Layers of Gemma 4 that attend to the keys and values of a layer before them.

transformers hands these to them, so that each can be cached as if it were the layer's own. The
compiled decoder reads them where they are, and keeps nothing for such a layer.
"""

from collections.abc import Iterable
from typing import Any

from roseinfer.kv_cache.cache import LayerShape


def shared_shape(attention: Any, shape: LayerShape) -> LayerShape | None:
    """What the cache has of a token for `attention` where a layer before it has it; None: it has
    keys and values of its own, of this shape."""
    return LayerShape(shape.kv_heads, 0, 0) if shares_keys(attention) else None


def shares_keys(attention: Any) -> bool:
    return type(attention).__name__ == "Gemma4TextAttention" and attention.is_kv_shared_layer


def source_layers(attentions: Iterable[Any]) -> list[int | None]:
    """Of each layer the number of the one whose keys and values it attends to, if not its own."""
    stored: dict[str, int] = {}
    sources: list[int | None] = []
    for number, attention in enumerate(attentions):
        sources.append(stored[attention.layer_type] if shares_keys(attention) else None)
        if attention.store_full_length_kv:
            stored[attention.layer_type] = number
    return sources
