"""Launches of the attention kernels: their tiles, splits and arguments."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from roseinfer.gpu import kernels
from roseinfer.gpu.device import (
    cdiv,
    device_guard,
    multiprocessors,
    next_power_of_2,
    shared_memory,
)
from roseinfer.gpu.kernels.attention import attend_kernel, reduce_kernel, write_kernel

_MIN_TILE = 16  # the smallest matrix that a tensor core multiplies
_MAX_SPLITS = 64
_LONG_PREFILL = 2048  # queries
_WAVES = 2  # programs for each multiprocessor
_LARGE_MEMORY = 160 * 1024  # bytes that a program may share: Ampere's and Hopper's servers
_TILE_BYTES = 32 * 1024  # of keys, and as much of values: two tiles of each are on their way


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences of a step, as the kernels read them: int64 tensors on the device.

    The first `decodes` of them have one query each, the other `prefills` at most `longest`. Of the
    `lengths[s]` tokens of a sequence the queries are the last ones, at rows [query_starts[s],
    query_starts[s + 1]); a padding sequence has a length of 0. Its table begins at
    `tables[table_starts[s]]`.
    """

    tables: Tensor
    table_starts: Tensor
    query_starts: Tensor
    lengths: Tensor
    decodes: int
    prefills: int
    longest: int


@dataclass(frozen=True, slots=True)
class Pages:
    """One layer's share of the cache: [slots, KV heads, head size], `size` slots a page."""

    keys: Tensor
    values: Tensor
    size: int


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """The parameters of a layer's attention; see AttentionCall."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


class PartialResults(NamedTuple):
    """What the splits of each sequence computed: weighted values, and the softmax's maximum and
    sum, which `reduce_kernel` combines."""

    values: Tensor
    maxima: Tensor
    sums: Tensor


class Tile(NamedTuple):
    """Rows and keys that a program handles at a time, its warps, and how many tiles of keys and
    values are on their way or in use."""

    rows: int
    keys: int
    warps: int
    stages: int


def write(pages: Pages, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Put `keys` and `values` [T, KV heads, head size] into the cache's `slots` [T]."""
    keys, values = _with_dense_heads(keys), _with_dense_heads(values)
    tokens, heads, key_dim = keys.shape
    block = 16
    with device_guard(keys):
        write_kernel[(cdiv(tokens, block), heads)](
            keys,
            values,
            pages.keys,
            pages.values,
            slots,
            tokens,
            *keys.stride()[:2],
            *values.stride()[:2],
            KV_HEADS=heads,
            KEY_DIM=key_dim,
            VALUE_DIM=values.shape[2],
            BLOCK_T=block,
            BLOCK_KD=_block(key_dim),
            BLOCK_VD=_block(values.shape[2]),
        )


def attend(
    pages: Pages,
    query: Tensor,
    sequences: Sequences,
    params: AttentionParams,
    *,
    splits: int | None = None,
) -> Tensor:
    """The attention of `query` [T, query heads, head size] over the cache: [T, query heads, value
    size].

    `splits` None chooses what suits the device. Rows of no sequence are left undefined.
    """
    query = _with_dense_heads(query)
    out = query.new_empty(*query.shape[:2], pages.values.shape[2])
    with device_guard(query):
        if sequences.decodes:
            if splits is None:
                splits = choose_splits(sequences.decodes * pages.keys.shape[1], query.device)
            _decode(pages, query, out, sequences, params, splits)
        if sequences.prefills:
            _prefill(pages, query, out, sequences, params)
    return out


def choose_splits(programs: int, device: torch.device) -> int:
    """Splits of each sequence's keys, so that `programs` times as many programs fill the device.

    A power of two. It does not depend on the lengths, so a captured graph stays valid.
    """
    splits = max(1, _WAVES * multiprocessors(device) // programs)
    return min(1 << (splits.bit_length() - 1), _MAX_SPLITS)


def _prefill(
    pages: Pages, query: Tensor, out: Tensor, sequences: Sequences, params: AttentionParams
) -> None:
    group = query.shape[1] // pages.keys.shape[1]
    tile = _prefill_tile(pages, group, sequences.longest)
    tiles = cdiv(sequences.longest, tile.rows // group)
    first, count = sequences.decodes, sequences.prefills
    _attend(pages, query, out, sequences, params, tile, (count, tiles), first=first)


def _decode(
    pages: Pages,
    query: Tensor,
    out: Tensor,
    sequences: Sequences,
    params: AttentionParams,
    splits: int,
) -> None:
    heads, value_dim = query.shape[1], pages.values.shape[2]
    tile = _decode_tile(pages, heads, sequences.decodes * splits)
    if splits == 1:
        _attend(pages, query, out, sequences, params, tile, (sequences.decodes, 1))
        return
    shape = (sequences.decodes, heads, splits)
    partial = PartialResults(
        query.new_empty(*shape, value_dim, dtype=torch.float32),
        query.new_empty(shape, dtype=torch.float32),
        query.new_empty(shape, dtype=torch.float32),
    )
    grid = sequences.decodes, splits
    _attend(pages, query, out, sequences, params, tile, grid, splits=splits, partial=partial)
    reduce_kernel[(sequences.decodes, heads)](
        out,
        partial.values,
        partial.maxima,
        partial.sums,
        sequences.query_starts,
        HEADS=heads,
        VALUE_DIM=value_dim,
        SPLITS=splits,
        BLOCK_VD=_block(value_dim),
    )


def _attend(
    pages: Pages,
    query: Tensor,
    out: Tensor,
    sequences: Sequences,
    params: AttentionParams,
    tile: Tile,
    grid: tuple[int, int],
    *,
    first: int = 0,
    splits: int = 1,
    partial: PartialResults | None = None,
) -> None:
    """One launch over `grid`: sequences from the `first` on, and tiles or splits of each."""
    kv_heads, key_dim = pages.keys.shape[1:]
    if partial is None:
        partial = PartialResults(out, out, out)  # the kernel does not touch them without splits
    attend_kernel[(grid[0], kv_heads, grid[1])](
        query,
        out,
        partial.values,
        partial.maxima,
        partial.sums,
        pages.keys,
        pages.values,
        params.sinks if params.sinks is not None else query,
        sequences.tables,
        sequences.table_starts,
        sequences.query_starts,
        sequences.lengths,
        first,
        params.scaling,
        params.softcap or 0.0,
        *query.stride()[:2],
        KV_HEADS=kv_heads,
        GROUP=query.shape[1] // kv_heads,
        PAGE=pages.size,
        KEY_DIM=key_dim,
        VALUE_DIM=pages.values.shape[2],
        WINDOW=params.window or 0,
        HAS_SOFTCAP=params.softcap is not None,
        HAS_SINKS=params.sinks is not None,
        SPLITS=splits,
        WIDEN=kernels.INTERPRETED and pages.keys.dtype == torch.bfloat16,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        BLOCK_KD=_block(key_dim),
        BLOCK_VD=_block(pages.values.shape[2]),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _prefill_tile(pages: Pages, group: int, longest: int) -> Tile:
    row_bytes, group = _row_bytes(pages), next_power_of_2(group)
    wide = pages.keys.dtype == torch.float32
    if wide or not _has_large_memory(pages):
        keys = max(16, min(64, _TILE_BYTES // 2 // row_bytes))
        return Tile(max(32 if wide else 64, group), keys, 4, 2)
    rows = max(128, group)
    if row_bytes > 256:
        return Tile(rows, 32, 8, 2)
    return Tile(rows, 128, 8, 2) if longest > _LONG_PREFILL else Tile(rows, 32, 4, 3)


def _decode_tile(pages: Pages, heads: int, parts: int) -> Tile:
    """For `parts` of sequences. Where they are few, each has much of a multiprocessor's shared
    memory for keys that are on their way; where they are many, they wait beside each other."""
    kv_heads = pages.keys.shape[1]
    rows, row_bytes = max(_MIN_TILE, next_power_of_2(heads // kv_heads)), _row_bytes(pages)
    if kv_heads * parts <= _WAVES * multiprocessors(pages.keys.device) and _has_large_memory(pages):
        return Tile(rows, min(128, _TILE_BYTES // row_bytes), 4, 3)
    if row_bytes > 256:
        return Tile(rows, 32, 4, 2)
    return Tile(rows, 64, 2 if rows == _MIN_TILE else 4, 2)


def _has_large_memory(pages: Pages) -> bool:
    return shared_memory(pages.keys.device) >= _LARGE_MEMORY


def _row_bytes(pages: Pages) -> int:
    """Of a key or a value, in shared memory."""
    widest = max(_block(pages.keys.shape[2]), _block(pages.values.shape[2]))
    return widest * pages.keys.dtype.itemsize


def _with_dense_heads(tensor: Tensor) -> Tensor:
    """`tensor` with the elements of each head side by side, as the kernels read them."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _block(dim: int) -> int:
    return max(_MIN_TILE, next_power_of_2(dim))
