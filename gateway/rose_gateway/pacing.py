"""Work that takes long: a piece of it each time the event loop comes round, so that what others
wait for goes on in between."""

import asyncio

#: A smaller body costs little, whatever it holds.
LARGE_BYTES = 64 * 1024


class LoopPacer:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Returns when it is this piece's turn."""
        async with self._lock:
            await asyncio.sleep(0)

    async def wait_for(self, size: int) -> None:
        """The same for a body of this size. A small one need not wait."""
        if size > LARGE_BYTES:
            await self.wait()
