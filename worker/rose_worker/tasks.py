"""Runs tasks concurrently until they are done, late or cancelled."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from rose.transport import CONNECTION_LOST

_AGAIN_S = 0.1

#: Time left to work that a second signal interrupts.
_HURRY_S = 0.5


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


async def at_least_one(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once. An outage is only raised if all have met one; any other error is."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    errors = [outcome for outcome in outcomes if outcome is not None]
    for error in errors:
        if len(errors) == len(outcomes) or not isinstance(error, CONNECTION_LOST):
            raise error


async def in_time(work: Coroutine[Any, Any, None], limit_s: float, hurry: asyncio.Event) -> bool:
    """Whether the work was done before the limit, or soon after `hurry`. It is cancelled if not.

    Raises: what the work raises.
    """
    task = asyncio.ensure_future(work)
    hurried = asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait([task, hurried], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if hurried.done():
            await asyncio.wait([task], timeout=min(_HURRY_S, limit_s))
    finally:
        hurried.cancel()
        if not task.done():
            await cancel_all([task])
    if task.cancelled():
        return False
    task.result()
    return True
