"""Ending tasks, also those that lose a cancellation."""

import asyncio
from contextlib import suppress

from rose_worker.tasks import cancel_all


async def test_a_task_that_loses_a_cancellation_ends_all_the_same() -> None:
    # given
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(300)
        lost += 1
        await asyncio.sleep(300)

    async def fails() -> None:
        raise OSError("as the test wishes")

    tasks = [asyncio.create_task(deaf()), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    # when
    await cancel_all(tasks)
    # then
    assert lost == 1
    assert all(task.done() for task in tasks)
