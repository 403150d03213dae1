"""The messages of one asyncio listener until it takes them."""

import asyncio
from collections import deque
from typing import Any

import redis


class Inbox:
    """The messages of one listener; memory is bounded, since the log has them all."""

    def __init__(self, size: int) -> None:
        self.found: list[Any] | None = None
        """Replies to the commands of `listen`, which Redis has carried out after the subscription.
        None: ask on another connection."""
        self._size = size
        self._messages: deque[bytes] = deque()
        self._overflowed = False
        self._lost: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        # Set again only when it has fired: nearly always a message comes much earlier.
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0

    def put(self, message: bytes) -> None:
        if len(self._messages) >= self._size:
            self._messages.clear()
            self._overflowed = True
        self._messages.append(message)
        self._wake()

    def lose(self, reason: str) -> None:
        self._lost = reason
        self._wake()

    async def get(self, timeout_s: float) -> bytes | None:
        """The next message. None: read the log; either nothing came for so long, or more
        came than is kept.

        Raises:
            redis.ConnectionError: the subscription is lost; listen again.
        """
        if not (self._messages or self._overflowed or self._lost is not None):
            await self._wait(timeout_s)
        if self._overflowed:
            self._overflowed = False
            return None
        if self._messages:
            return self._messages.popleft()
        if self._lost is not None:
            raise redis.ConnectionError(f"the subscription is lost: {self._lost}")
        return None

    async def is_silent(self, timeout_s: float) -> bool:
        """Whether there is nothing to `get` after so long."""
        if not (self._messages or self._overflowed or self._lost is not None):
            await self._wait(timeout_s)
        return not (self._messages or self._overflowed or self._lost is not None)

    async def _wait(self, timeout_s: float) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        self._wake_after(timeout_s)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def get_ready(self) -> bytes | None:
        """The next message if it is there already, in its turn. None: call `get`."""
        if self._overflowed or not self._messages:
            return None
        return self._messages.popleft()

    def close(self) -> None:
        """Nobody listens any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_after(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + timeout_s
        if self._timer is None or self._timer.when() > self._deadline:
            self.close()
            self._timer = loop.call_at(self._deadline, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._on_timer, loop)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
