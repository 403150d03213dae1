"""The blocks of the paged KV cache: which tables refer to them, and the prefix cache over them.

Every layer keeps its keys and values in one tensor of slots; a block is `block_size` consecutive
slots, the same numbers in every layer. A session owns a table of block numbers, so the token at
position p lies in slot `table[p // block_size] * block_size + p % block_size`:

    block        0          1          2          3
    slot     0 1 2 3    4 5 6 7    8 9 10 11  12 13 14 15
             reserved   table = [2, 1] puts positions 0..3 in slots 8..11, 4..7 in slots 4..7

Block 0 is reserved: padding is written there and read from there under a mask.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from roseinfer.kv_cache.second_tier import Record, SecondTier
from roseinfer.kv_cache.state_pool import StatePool

PADDING_BLOCK = 0

# A session's blocks, in the order of its tokens. Each step that computes the session copies them.
BlockTable: TypeAlias = "array[int]"

# The serial number of the content before a block's, or the request's salt before its first block.
# No salt is a number, so requests with different salts share no block.
Parent: TypeAlias = int | str

# A dict compares the whole key on a hit, so equal hashes never pass for equal tokens.
ContentKey = tuple[Parent, tuple[int, ...]]


def block_table(blocks: Iterable[int] = ()) -> BlockTable:
    """The table with these blocks."""
    return array("q", blocks)


class CacheExhausted(RuntimeError):
    """More blocks were asked for than are free; the caller should have looked first."""


@dataclass(slots=True)
class _Content:
    key: ContentKey
    serial: int


class BlockPool:
    """Hands out blocks, counts references to them, and keeps full ones for the prefix cache.

    Invariant: each block but the reserved one is exactly one of free (no content), cached (content
    but no reference, evicted in least-recently-used order) or used (referenced by some table).
    """

    def __init__(self, num_blocks: int, block_size: int, states: StatePool | None = None) -> None:
        """`num_blocks` includes the reserved block. `states` are those behind blocks."""
        self.block_size = block_size
        self.states = states or StatePool()
        self.tier: SecondTier | None = None
        self.total = num_blocks - 1
        self._free: deque[int] = deque(range(1, num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references: dict[int, int] = {}
        self._content: dict[int, _Content] = {}
        self._by_key: dict[ContentKey, int] = {}
        self._next_serial = 0

    @property
    def used(self) -> int:
        return len(self._references)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that `allocate` could hand out now: the free and the cached ones."""
        return len(self._free) + len(self._cached)

    def allocate(self, count: int) -> BlockTable:
        """Take `count` blocks, evicting the least recently used content if need be."""
        if count > self.available:
            raise CacheExhausted(f"{count} blocks wanted, {self.available} available")
        while len(self._free) < count:
            self._evict_oldest()
        blocks = block_table(self._free.popleft() for _ in range(count))
        for block in blocks:
            self._references[block] = 1
        return blocks

    def match(self, tokens: Sequence[int], limit: int, salt: str = "") -> BlockTable:
        """Take the cached blocks of this salt that hold the longest prefix of `tokens[:limit]`; of
        a model with states, the longest with a state behind it."""
        blocks = block_table()
        parent: Parent = salt
        size = self.block_size
        for start in range(0, limit - size + 1, size):
            block = self._by_key.get((parent, tuple(tokens[start : start + size])))
            if block is None:
                break
            self._add_reference(block)
            blocks.append(block)
            parent = self._content[block].serial
        if self.states.total:
            self._drop_stateless_end(blocks)
        return blocks

    def register(
        self, block: int, parent: Parent, tokens: Sequence[int], record: Record | None = None
    ) -> int:
        """Remember that `block` holds `tokens` after the content `parent`; with a `record`, in the
        second tier too.

        Returns the content's serial number, the `parent` of the next block. If another block
        already holds the same content, that one stays the one that is found.
        """
        key = (parent, tuple(tokens))
        known = self._by_key.get(key)
        if known is not None:
            return self._content[known].serial
        content = _Content(key, self._next_serial)
        self._next_serial += 1
        self._content[block] = content
        self._by_key[key] = block
        if self.tier is not None and record is not None:
            self.tier.save_block(block, record)
        return content.serial

    def serial(self, block: int) -> int:
        """The serial number of the content that `match` found in `block`."""
        return self._content[block].serial

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a table.

        The last block goes first, so that a prefix outlives what was built on it: content whose
        beginning is forgotten cannot be found any more.
        """
        for block in reversed(blocks):
            references = self._references[block] - 1
            if references:
                self._references[block] = references
                continue
            del self._references[block]
            if block in self._content:
                self._cached[block] = None
            else:
                self._free.append(block)

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every block is free, cached or used, and only one of them."""
        seen = [*self._free, *self._cached, *self._references]
        if sorted(seen) != list(range(1, self.total + 1)):
            raise RuntimeError(
                f"the block pool lost count: {len(self._free)} free + {self.cached} cached + "
                f"{self.used} used should be {self.total} different blocks"
            )
        if any(count < 1 for count in self._references.values()):
            raise RuntimeError("the block pool counts a used block without a reference")
        if any(self._content[block].key not in self._by_key for block in self._content):
            raise RuntimeError("the block pool holds content that cannot be found")
        if len(self._by_key) != len(self._content) or not self._cached.keys() <= set(self._content):
            raise RuntimeError("the block pool's content index does not match its blocks")
        self.states.check_integrity()

    def _drop_stateless_end(self, blocks: BlockTable) -> None:
        count = len(blocks)
        while count and self.states.find(self.serial(blocks[count - 1])) is None:
            count -= 1
        self.release(blocks[count:])
        del blocks[count:]

    def _add_reference(self, block: int) -> None:
        self._cached.pop(block, None)
        self._references[block] = self._references.get(block, 0) + 1

    def _evict_oldest(self) -> None:
        block, _ = self._cached.popitem(last=False)
        content = self._content.pop(block)
        del self._by_key[content.key]
        self.states.forget(content.serial)
        if self.tier is not None:
            self.tier.drop_block(block)
        self._free.append(block)
