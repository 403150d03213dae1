"""The tensors that hold the keys and values of every layer, block by block: see `block_pool`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.kv_cache.block_pool import BlockPool


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The KV shape of one attention layer; keys and values may differ in head size."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements_per_token(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


class KVCache:
    """Keys and values of every layer: tensors [num_blocks * block_size, kv_heads, head_dim].

    With `padding` above 1 a block has room for a multiple of it in keys, and a value's head_dim is
    one: for runners that read whole vectors, in an order of their own.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        padding: int = 1,
    ) -> None:
        self.block_size, self.num_blocks = block_size, num_blocks
        self.pool = BlockPool(num_blocks, block_size)

        # Zeros, not empty: what lies under the mask is multiplied by zero, and 0 * nan is nan.
        def storage(room: int, heads: int, dim: int) -> Tensor:
            return torch.zeros(num_blocks * room, heads, dim, device=device, dtype=dtype)

        room = _padded(block_size, padding)
        self.keys = [storage(room, shape.kv_heads, shape.key_dim) for shape in shapes]
        self.values = [
            storage(block_size, shape.kv_heads, _padded(shape.value_dim, padding))
            for shape in shapes
        ]


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
