"""The states of layers that remember a sequence as a whole: who holds which slot.

A convolution keeps its last inputs, a recurrence its sums. A step changes them and nothing brings
them back, so a sequence can be continued only where a copy was kept: at ends of blocks.

    block        0           1           2
    tokens  |- - - - - -|- - - - - -|- - - - -
    states              kept        kept      ^ the session's own, behind its computed tokens

Every layer with a state has one in each slot. A slot is free, held by a session, or kept for the
prefix cache, by the serial number of the block's content that ends there. Kept ones are given up,
the least recently used first, when slots run out. Slot 0 is reserved: it holds zeros, the state
before any token.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence

from roseinfer.kv_cache.second_tier import SecondTier

NO_TOKENS = 0


class StatePool:
    """Slots for states; of a model without such layers there are none."""

    def __init__(self, num_slots: int = 0, interval: int = 0) -> None:
        """`num_slots` includes the reserved one. Of each sequence one state is kept for every
        `interval` tokens, a multiple of the block size."""
        self.total = max(num_slots - 1, 0)
        self.interval = interval
        self._free: deque[int] = deque(range(1, num_slots))
        self._kept: OrderedDict[int, int] = OrderedDict()  # slots by serial numbers
        self._copies: list[tuple[int, int]] = []
        self.tier: SecondTier | None = None

    @property
    def used(self) -> int:
        """Slots that sessions hold."""
        return self.total - self.available

    @property
    def available(self) -> int:
        """Slots that `take` could hand out now: the free and the kept ones."""
        return len(self._free) + len(self._kept)

    @property
    def has_room(self) -> bool:
        """Whether another session finds a slot, if it needs one."""
        return not self.total or self.available > 0

    def take(self) -> int:
        """A slot with any content; the caller has seen that one is available."""
        if not self._free:
            self._free.append(self._kept.popitem(last=False)[1])
        slot = self._free.popleft()
        if self.tier is not None:
            self.tier.drop_state(slot)
        return slot

    def take_copy(self, of: int) -> int:
        """A slot that holds what `of` does when the next step begins."""
        slot = self.take()
        self._copies.append((of, slot))
        return slot

    def pop_copies(self) -> list[tuple[int, int]]:
        """Pairs of slots, in the order in which the first of each is to be copied to the second
        before a step writes any."""
        copies, self._copies = self._copies, []
        return copies

    def cancel_copy(self, slot: int) -> None:
        """The slot holds what it shall."""
        self._copies = [copy for copy in self._copies if copy[1] != slot]

    def give_back(self, slots: Sequence[int]) -> None:
        self._copies = [copy for copy in self._copies if copy[1] not in slots]
        self._free.extend(slots)

    def keep(self, serial: int, slot: int) -> None:
        """Keep the state in `slot` for those who continue the content with this number."""
        if serial in self._kept:
            self._free.append(slot)
        else:
            self._kept[serial] = slot

    def find(self, serial: int) -> int | None:
        """The slot of the state that was kept behind this content."""
        slot = self._kept.get(serial)
        if slot is not None:
            self._kept.move_to_end(serial)
        return slot

    def forget(self, serial: int) -> None:
        slot = self._kept.pop(serial, None)
        if slot is not None:
            self._free.append(slot)

    def check_integrity(self) -> None:
        """Raise RuntimeError if a slot is free or kept twice."""
        seen = [*self._free, *self._kept.values()]
        if len(set(seen)) != len(seen) or not set(seen) <= set(range(1, self.total + 1)):
            raise RuntimeError(
                f"the state pool lost count: {len(self._free)} free and {len(self._kept)} kept of "
                f"{self.total} slots"
            )
