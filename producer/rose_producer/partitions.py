"""The base of classes that manage a queue over all its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rose import transport
from rose.protocol import Partition

if TYPE_CHECKING:
    from rose.settings import QueueSettings


class AllPartitions:
    """The partitions of a queue, and connections to its Redis until it is closed."""

    def __init__(self, settings: QueueSettings) -> None:
        self._partitions = [Partition(settings.queue, i) for i in range(settings.partitions)]
        self._redis = transport.RedisClient(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._redis.close()
