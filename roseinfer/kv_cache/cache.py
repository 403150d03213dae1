"""The tensors that hold the keys and values of every layer, block by block, and the states of
layers that have one, slot by slot: see `block_pool` and `state_pool`."""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.kv_cache.block_pool import BlockPool
from roseinfer.kv_cache.second_tier import SecondTier, SecondTierOptions
from roseinfer.kv_cache.state_pool import StatePool

# A state is kept for this many tokens of a sequence, and there are slots for as many of the cache:
# a state takes as much memory as the keys and values of hundreds of tokens.
_STATE_INTERVAL = 512
_LEAST_STATES = 16


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The KV shape of one attention layer; keys and values may differ in head size."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements_per_token(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class StateShape:
    """The state of one layer: the last inputs [tokens, channels] of its convolution, in the model's
    precision, and the sums [heads, keys, values] of its recurrence, if it has one, in float32."""

    inputs: tuple[int, int]
    sums: tuple[int, int, int] | None

    def size_bytes(self, dtype: torch.dtype) -> int:
        sums = math.prod(self.sums) if self.sums is not None else 0
        return math.prod(self.inputs) * dtype.itemsize + sums * torch.float32.itemsize


class KVCache:
    """Keys and values of every layer: tensors [num_blocks * block_size, kv_heads, head_dim]. States
    of every layer: tensors [slots, ...], see StateShape.

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
        states: Sequence[StateShape] = (),
    ) -> None:
        self.block_size, self.num_blocks, self.device = block_size, num_blocks, device
        slots = _num_states(num_blocks * block_size) if states else 0
        interval = padded(_STATE_INTERVAL, block_size)
        self.pool = BlockPool(num_blocks, block_size, StatePool(slots, interval))

        def storage(room: int, heads: int, dim: int) -> Tensor:
            return _zeros((num_blocks * room, heads, dim), device, dtype)

        self.inputs = [_zeros((slots, *shape.inputs), device, dtype) for shape in states]
        self.sums = [
            _zeros((slots, *shape.sums), device, torch.float32) if shape.sums is not None else None
            for shape in states
        ]

        room = padded(block_size, padding)
        self.keys = [storage(room, shape.kv_heads, shape.key_dim) for shape in shapes]
        self.values = [
            storage(block_size, shape.kv_heads, padded(shape.value_dim, padding))
            for shape in shapes
        ]

    @property
    def size_bytes(self) -> int:
        sums = [tensor for tensor in self.sums if tensor is not None]
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values, *self.inputs, *sums))

    def add_second_tier(self, options: SecondTierOptions, identity: bytes) -> SecondTier:
        """Keep what becomes findable in files too, and find it there. The cache is in main memory.

        `identity` (32 bytes) stands for all on which the bits of a block depend. Raises
        ConfigurationError and OSError, see SecondTier.
        """
        blocks = [_bytes_of(tensor, self.num_blocks) for tensor in (*self.keys, *self.values)]
        states = [
            _bytes_of(tensor, self.pool.states.total + 1)
            for tensor in (*self.inputs, *self.sums)
            if tensor is not None
        ]
        tier = SecondTier(
            options,
            identity,
            self.block_size,
            _Pieces(blocks),
            _Pieces(states) if states else None,
            self.pool.states.interval // self.block_size,
        )
        self.pool.tier = self.pool.states.tier = tier
        return tier

    def copy_states(self) -> None:
        """Bring slots to the state that their sessions begin with: before a step, in its thread."""
        for of, slot in self.pool.states.pop_copies():
            for tensor in (*self.inputs, *self.sums):
                if tensor is not None:
                    tensor[slot] = tensor[of]


class _Pieces:
    """The memory of blocks or of states, by their numbers: a part of each of `parts`, memory and
    the bytes of it that belong to one."""

    def __init__(self, parts: Sequence[tuple[memoryview, int]]) -> None:
        self._parts = parts
        self.size_bytes = sum(size for _, size in parts)

    def __call__(self, number: int) -> list[memoryview]:
        return [all_[number * size : (number + 1) * size] for all_, size in self._parts]


def _bytes_of(tensor: Tensor, count: int) -> tuple[memoryview, int]:
    """The memory of `count` consecutive parts of a tensor, and the bytes of each."""
    memory = tensor.view(-1).view(torch.uint8).numpy().data
    return memory, len(memory) // count


def state_bytes_per_token(states: Sequence[StateShape], dtype: torch.dtype) -> int:
    """What the states take in the cache for each token that it holds."""
    return -(-sum(shape.size_bytes(dtype) for shape in states) // _STATE_INTERVAL)


def _num_states(tokens: int) -> int:
    """Slots for a cache of `tokens` tokens, and the reserved one."""
    return 1 + max(_LEAST_STATES, tokens // _STATE_INTERVAL)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros, not empty: what lies under the mask is multiplied by zero, and 0 * nan is nan. In main
    memory they are the system's, which takes a page when it is written; torch would write all."""
    count = math.prod(shape)
    if device.type != "cpu" or count == 0:
        return torch.zeros(shape, device=device, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype=dtype).view(shape)


def padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
