"""The tensors that hold the keys and values of every layer, block by block: see `block_pool`."""

import math
import mmap
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

        def storage(room: int, heads: int, dim: int) -> Tensor:
            return _zeros((num_blocks * room, heads, dim), device, dtype)

        room = _padded(block_size, padding)
        self.keys = [storage(room, shape.kv_heads, shape.key_dim) for shape in shapes]
        self.values = [
            storage(block_size, shape.kv_heads, _padded(shape.value_dim, padding))
            for shape in shapes
        ]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))


def _zeros(shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros, not empty: what lies under the mask is multiplied by zero, and 0 * nan is nan. In main
    memory they are the system's, which takes a page when it is written; torch would write all."""
    count = math.prod(shape)
    if device.type != "cpu" or count == 0:
        return torch.zeros(shape, device=device, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype=dtype).view(shape)


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
