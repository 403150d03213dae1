"""Ends tasks that serve until they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

_AGAIN_S = 0.1


async def cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their ends. How they end does not matter.

    Cancels repeatedly: redis-py writes through `asyncio.wait_for`, which before Python 3.12 loses a
    cancellation that comes just when it is done.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
