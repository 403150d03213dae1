"""How many downloads there may be at a time: each takes memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from rose_gateway.errors import ApiError
from rose_gateway.metrics import Metrics


class ConcurrencyLimit:
    """Belongs to one event loop."""

    def __init__(self, slots: int) -> None:
        self._free = slots

    @contextmanager
    def slot(self, metrics: Metrics) -> Iterator[None]:
        """Raises: ApiError: 503: all are taken."""
        if not self._free:
            metrics.limit_hit("downloads")
            raise ApiError(
                503,
                "the server has as many downloads as it can: try again",
                type="server_error",
                code="server_busy",
                retry_after_s=1.0,
            )
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1
