"""What befell whom and when, and may have cost a worker its leases."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

#: What overlaps a time is looked for among what overlaps its slot.
_SLOT_S = 10.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that may cost a worker its leases."""

    began: float
    ended: float
    what: str
    process: str | None = None
    """whose; None: everybody's"""
    partitions: frozenset[int] | None = None
    """in which; None: in all"""

    def concerns(self, process: str, partition: int) -> bool:
        return self.process in (None, process) and (
            self.partitions is None or partition in self.partitions
        )


class Troubles:
    """Finds those of a time, however many a long run has had."""

    def __init__(self, troubles: Iterable[Trouble]) -> None:
        self._slots: dict[int, list[Trouble]] = defaultdict(list)
        for trouble in troubles:
            for slot in _slots(trouble.began, trouble.ended):
                self._slots[slot].append(trouble)

    def during(self, process: str, partition: int, after: float, before: float) -> str | None:
        """What befell a process between two times; None: nothing."""
        for slot in _slots(after, before):
            for trouble in self._slots.get(slot, ()):
                if (
                    trouble.concerns(process, partition)
                    and trouble.began <= before
                    and trouble.ended >= after
                ):
                    return trouble.what
        return None


def _slots(began: float, ended: float) -> range:
    return range(int(began // _SLOT_S), int(ended // _SLOT_S) + 1)
