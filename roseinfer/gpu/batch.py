"""One step's packed batch as the kernels want it: decoding sequences first, then prefill chunks.

    row          0    1    2    3   4   5   6   7   8   9
                 d0   d1   d2   p0  p0  p0  p0  p1  p1  p1
    sequence     0    1    2    3               4

Everything is one flat tensor of integers, so that it is one copy to the device:

    ids T | positions T | slots T | logit rows S | starts B + 1 | lengths B | table at B | tables

The tables lie one after another, each as long as its sequence, so a long context costs the others
nothing. Each part begins at 16 bytes: Triton compiles a kernel anew for pointers that do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.devices.transfer import IntegerBuffer
from roseinfer.gpu.attention import Pages, Sequences
from roseinfer.kv_cache.block_pool import block_table
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.packed_batch import StepInputs, slots
from roseinfer.sessions.session import Chunk, DeviceTokens


@dataclass(frozen=True, slots=True)
class DeviceBatch(StepInputs):
    """As the kernels read them, all on the device."""

    sequences: Sequences


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of the flat tensor lie, for so many rows, logits and sequences."""

    rows: int
    logits: int
    sequences: int

    @property
    def _sizes(self) -> tuple[int, ...]:
        rows, sequences = self.rows, self.sequences
        return rows, rows, rows, self.logits, sequences + 1, sequences, sequences

    @property
    def tables_at(self) -> int:
        return sum(map(_even, self._sizes))

    def split(self, flat: Tensor) -> list[Tensor]:
        """Ids, positions, slots, logit rows, starts, lengths, where tables begin, the tables."""
        sizes = [*self._sizes, flat.numel() - self.tables_at]
        parts = torch.split(flat, [*map(_even, self._sizes), sizes[-1]])
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]


class DeviceCache:
    """A KV cache as the kernels use it: the pages of every layer, and steps laid out over them."""

    def __init__(self, cache: KVCache) -> None:
        self._block_size, self._device = cache.block_size, cache.device
        self.pages = [
            Pages(keys, values, cache.block_size)
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ]

    def pack(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> DeviceBatch:
        return pack(chunks, self._block_size, self._device, device_tokens)


def _even(count: int) -> int:
    """Integers that fill whole steps of 16 bytes."""
    return count + count % 2


def pack(
    chunks: Sequence[Chunk],
    block_size: int,
    device: torch.device,
    device_tokens: DeviceTokens | None = None,
) -> DeviceBatch:
    """Lay out `chunks` (at least one) and send them to `device`."""
    order = [chunk for chunk in chunks if chunk.count == 1]
    decodes = len(order)
    order += [chunk for chunk in chunks if chunk.count > 1]
    prefills = order[decodes:]
    ints, layout = flatten(order, block_size, device_tokens)
    ids, positions, slot_ids, logit_rows, starts, lengths, table_starts, tables = layout.split(
        ints.to(device)
    )
    sequences = Sequences(
        tables,
        table_starts,
        starts,
        lengths,
        decodes,
        len(prefills),
        max((chunk.count for chunk in prefills), default=0),
    )
    if device_tokens is not None:
        ids = device_tokens.fill(ids)
    return DeviceBatch(
        order, ids.unsqueeze(0), positions.unsqueeze(0), slot_ids, logit_rows, sequences
    )


def flatten(
    order: Sequence[Chunk], block_size: int, device_tokens: DeviceTokens | None, padding: int = 0
) -> tuple[IntegerBuffer, Layout]:
    """The numbers of a step on the host. Chunks of one token come first in `order`.

    `padding` sequences of no length and one row each are put behind decoding ones; their key goes
    to the reserved block.
    """
    # Column by column for those of one token, which nearly all are.
    ones = [chunk for chunk in order if chunk.count == 1]
    sessions = [chunk.session for chunk in ones]
    positions = [session.computed for session in sessions]
    ids = [
        session.tokens[position]
        if position < len(session.tokens)
        else chunk.from_device(device_tokens)
        for chunk, session, position in zip(ones, sessions, positions, strict=True)
    ]
    slot_ids = [
        session.blocks[position // block_size] * block_size + position % block_size
        for session, position in zip(sessions, positions, strict=True)
    ]
    logit_rows = [row for row, chunk in enumerate(ones) if chunk.logit_rows]
    ends = [*range(len(ones) + 1)]
    for chunk in order[len(ones) :]:
        span = range(chunk.session.computed, chunk.end)
        ids += chunk.input_ids(device_tokens)
        positions += span
        slot_ids += slots(chunk.session.blocks, span, block_size)
        end = ends[-1] + chunk.count
        logit_rows += range(end - chunk.logit_rows, end)
        ends.append(end)
    tables, table_starts, lengths = block_table(), list[int](), [chunk.end for chunk in order]
    for chunk, length in zip(order, lengths, strict=True):
        table_starts.append(len(tables))
        tables += chunk.session.blocks[: -(-length // block_size)]
    padded_ends = range(ends[-1] + 1, ends[-1] + padding + 1)
    ints = IntegerBuffer()

    def add(values: Sequence[int], padding: int = padding) -> None:
        ints.add(values)
        ints.pad(padding)
        ints.pad(len(ints) % 2)

    for column in (ids, positions, slot_ids, logit_rows):
        add(column)
    add([*ends, *padded_ends], padding=0)
    add(lengths)
    add(table_starts)
    ints.add(tables)
    rows, sequences = ends[-1] + padding, len(order) + padding
    return ints, Layout(rows, len(logit_rows) + padding, sequences)
