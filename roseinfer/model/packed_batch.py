"""One step's packed batch: every request's new tokens side by side in a single row.

    row       0   1   2   3   4   5   6   7   8   9  10  11
              d0  d1  d2  p0  p0  p0  p0  p0  p0  p0   -   -
              '-group--'  '-------- group ----------'  padding

Requests with one new token (d: decoding) come first, gathered in groups of like context length;
each longer chunk (p: prefill) is a group of its own. The row count is padded, see ROW_MULTIPLE.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.devices.transfer import IntegerBuffer
from roseinfer.kv_cache.block_pool import PADDING_BLOCK
from roseinfer.sessions.session import Chunk, DeviceTokens, InferenceSession

# Matrix kernels compute the last rows of an odd count in another way, so a token's last bits would
# depend on the other requests of the step. With padded numbers of tokens in a step, and of query
# rows in an attention call, float32 logits on CPU are bitwise the same in any batch. A test checks
# that.
ROW_MULTIPLE = 8
_QUERY_MULTIPLE = 4

# Groups are as wide as the next power of two of blocks, so a request's width follows from its own
# length alone; below this many blocks a shared width costs less than another group.
_MIN_GROUP_BLOCKS = 8


def padded(count: int) -> int:
    return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE


@dataclass(frozen=True, slots=True)
class KVView:
    """What one group's queries attend to, for one window.

    `blocks` [B * W] are block numbers, sequence by sequence; `mask` is bool
    [B, 1, share * n, W * block_size], True where a query may look.
    """

    blocks: Tensor
    mask: Tensor


@dataclass(slots=True)
class AttentionGroup:
    """Queries handled in one call: B sequences with n new tokens each, at rows [start, stop)."""

    start: int
    stop: int
    sequences: int
    positions: Tensor  # [B, n], the position of each query in its sequence
    tables: Tensor  # [B, W], block tables padded with the reserved block
    block_size: int
    _views: dict[tuple[int | None, int], KVView] = field(default_factory=dict)

    def view(self, window: int | None, share: int) -> KVView:
        """The keys that a sliding window of `window` tokens (None: no window) leaves visible.

        `share` query heads are folded into the rows of the mask. Computed once a step for each
        distinct window, however many layers share it.
        """
        view = self._views.get((window, share))
        if view is None:
            view = self._views[window, share] = self._make_view(window, share)
        return view

    def _make_view(self, window: int | None, share: int) -> KVView:
        blocks, size = self.tables, self.block_size
        queries = self.positions.unsqueeze(-1)
        first = torch.zeros_like(self.positions[:, :1])
        width = blocks.shape[1]
        if window is not None:
            # Only the blocks from the oldest visible key on: n queries attend to at most this many.
            visible = min(width, (window + self.positions.shape[1] - 2) // size + 2)
            if visible < width:
                oldest = (self.positions[:, :1] - window + 1).clamp_(min=0)
                first = (oldest // size).clamp_(max=width - visible)
                columns = first + torch.arange(visible, device=blocks.device)
                blocks = blocks.gather(1, columns)
        offsets = torch.arange(blocks.shape[1] * size, device=blocks.device)
        keys = (first * size + offsets).unsqueeze(1)
        mask = keys <= queries
        if window is not None:
            mask &= keys > queries - window
        mask = mask.unsqueeze(1).repeat(1, 1, share, 1)
        # Padding rows attend to everything: the softmax of a row without keys is nan.
        mask = F.pad(mask, (0, 0, 0, -mask.shape[2] % _QUERY_MULTIPLE), value=True)
        return KVView(blocks.flatten(), mask)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The tensors of one forward pass; `order` lists the chunks as they lie in the rows."""

    order: list[Chunk]
    input_ids: Tensor  # [1, T]
    position_ids: Tensor  # [1, T]
    slots: Tensor  # [T], where each row's key and value are written
    logit_rows: Tensor  # [S], rows whose logits are needed


@dataclass(frozen=True, slots=True)
class PackedBatch(StepInputs):
    """As torch's own attention reads them; `logit_rows` are padded by repeating row 0."""

    groups: list[AttentionGroup]
    begun: Tensor  # blocks that this step begins to fill and does not fill up


def slots(blocks: Sequence[int], positions: Iterable[int], size: int) -> list[int]:
    """Where the keys and values of `positions` lie, given a block table."""
    return [blocks[p // size] * size + p % size for p in positions]


def group_width(session: InferenceSession, end: int, block_size: int) -> int:
    """Blocks in the group that `session` belongs to when its tokens up to `end` are computed."""
    blocks = max(-(-end // block_size), _MIN_GROUP_BLOCKS)
    widest = max(-(-session.context_length // block_size), _MIN_GROUP_BLOCKS)
    return min(1 << (blocks - 1).bit_length(), widest)


def pack(
    chunks: Sequence[Chunk],
    block_size: int,
    device: torch.device,
    device_tokens: DeviceTokens | None = None,
) -> PackedBatch:
    """Lay out `chunks` (at least one) as one packed batch on `device`."""
    layout = _Layout(chunks, block_size, device_tokens)
    ints = IntegerBuffer()
    rows = padded(layout.rows)
    inputs = _add_padded(ints, layout.input_ids, rows)
    positions = _add_padded(ints, layout.positions, rows)
    slots = _add_padded(ints, layout.slots, rows)
    logits = _add_padded(ints, layout.logit_rows, padded(max(len(layout.logit_rows), 1)))
    tables = [ints.add(spec.tables) for spec in layout.groups]
    begun = ints.add(layout.begun)
    flat = ints.to(device)
    group_positions = flat[positions]
    input_ids = flat[inputs] if device_tokens is None else device_tokens.fill(flat[inputs])
    groups = [
        AttentionGroup(
            spec.start,
            spec.stop,
            spec.sequences,
            group_positions[spec.start : spec.stop].view(spec.sequences, -1),
            flat[table].view(spec.sequences, -1),
            block_size,
        )
        for spec, table in zip(layout.groups, tables, strict=True)
    ]
    return PackedBatch(
        layout.order,
        input_ids.unsqueeze(0),
        flat[positions].unsqueeze(0),
        flat[slots],
        flat[logits],
        groups,
        flat[begun],
    )


def _add_padded(ints: IntegerBuffer, values: list[int], length: int) -> slice:
    start = ints.add(values).start
    ints.pad(length - len(values))
    return slice(start, start + length)


@dataclass(slots=True)
class _GroupSpec:
    start: int
    stop: int
    sequences: int
    tables: list[int]


class _Layout:
    """The packed batch as plain lists, before it becomes tensors."""

    def __init__(
        self, chunks: Sequence[Chunk], block_size: int, device_tokens: DeviceTokens | None = None
    ) -> None:
        self.block_size = block_size
        self.device_tokens = device_tokens
        self.rows = 0
        self.order: list[Chunk] = []
        self.input_ids: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.logit_rows: list[int] = []
        self.begun: list[int] = []
        self.groups: list[_GroupSpec] = []
        by_width: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            if chunk.count == 1:
                by_width.setdefault(self._width(chunk), []).append(chunk)
        for width, members in sorted(by_width.items()):
            self._add_group(members, width)
        for chunk in chunks:
            if chunk.count > 1:
                self._add_group([chunk], self._width(chunk))

    def _width(self, chunk: Chunk) -> int:
        return group_width(chunk.session, chunk.end, self.block_size)

    def _add_group(self, members: list[Chunk], width: int) -> None:
        start, tables = self.rows, list[int]()
        for chunk in members:
            self._add_rows(chunk)
            table = chunk.session.blocks[: -(-chunk.end // self.block_size)]
            tables += table
            tables += [PADDING_BLOCK] * (width - len(table))
        self.groups.append(_GroupSpec(start, self.rows, len(members), tables))

    def _add_rows(self, chunk: Chunk) -> None:
        session = chunk.session
        positions = range(session.computed, chunk.end)
        self.input_ids += chunk.input_ids(self.device_tokens)
        self.positions += positions
        self.slots += slots(session.blocks, positions, self.block_size)
        self.rows += chunk.count
        filled = chunk.end // self.block_size
        if session.computed <= filled * self.block_size < chunk.end:
            self.begun.append(session.blocks[filled])
        self.order.append(chunk)
        self.logit_rows += range(self.rows - chunk.logit_rows, self.rows)
