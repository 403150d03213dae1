"""How many requests may do at a time what takes memory for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rose_gateway.errors import ApiError
from rose_gateway.metrics import Metrics


class ConcurrencyLimit:
    """Belongs to one event loop."""

    def __init__(self, slots: int, name: str) -> None:
        """`name`: in the metrics."""
        self._free = slots
        self._name = name

    @contextmanager
    def slot(self, metrics: Metrics) -> Iterator[None]:
        """Raises: ApiError: 503: all are taken."""
        if not self._free:
            metrics.limit_hit(self._name)
            raise ApiError(
                503,
                f"the server has as many {self._name} as it can: try again",
                type="server_error",
                code="server_busy",
                retry_after_s=1.0,
            )
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1
