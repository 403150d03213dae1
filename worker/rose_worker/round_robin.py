"""Round robin of the partitions over the slots that become free.

Several partitions want free slots at the same time, and the one that wakes first would take them
all. So the partition that has waited longest comes first, and each gets its share: of `n` free
slots that `k` partitions want, `n / k`. A job that arrives at a partition therefore waits for at
most as many jobs of the others as there are slots, and one for each of them.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rose.protocol import Partition


class RoundRobin:
    """The partitions of one worker that wait for slots, and when each had some last."""

    def __init__(self) -> None:
        self._waiting: dict[Partition, asyncio.Event] = {}
        self._last: dict[Partition, int] = {}
        self._turns = 0

    @contextmanager
    def waiting(self, partition: Partition) -> Iterator[asyncio.Event]:
        """It wants a slot. The event is set when it may ask for its share."""
        event = self._waiting[partition] = asyncio.Event()
        try:
            yield event
        finally:
            del self._waiting[partition]

    def wake(self) -> None:
        """Slots may have become free."""
        if self._waiting:
            for partition in sorted(self._waiting, key=self._last_turn):
                self._waiting[partition].set()

    def share(self, partition: Partition, free: int) -> int:
        """How many of the free slots it may have while the others wait."""
        others = [other for other in self._waiting if other != partition]
        own = self._last_turn(partition)
        before = sum(self._last_turn(other) < own for other in others)
        return max(0, -(-(free - before) // (len(others) + 1)))

    def took(self, partition: Partition) -> None:
        """It has had its share."""
        self._turns += 1
        self._last[partition] = self._turns

    def _last_turn(self, partition: Partition) -> tuple[int, int]:
        return self._last.get(partition, 0), partition.index
