"""Prepares prompts beside the event loop, and gives up on one that never ends.

The threads are daemons: a tokenizer that hangs delays neither the worker's intake nor its end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Preparation:
    _began: dict[int, float] = field(default_factory=dict, init=False)
    """when each thread has started what it does now"""

    @property
    def stalled_s(self) -> float:
        """How long the longest piece of work has taken that goes on; any thread may ask."""
        return max((time.monotonic() - began for began in [*self._began.values()]), default=0.0)

    async def run(self, works: Sequence[Callable[[], T]], limit_s: float) -> list[T | None]:
        """The results in order; None for a piece of work that takes longer than the limit."""
        results: list[T | None] = []
        while len(results) < len(works):
            results += await self._run_until_one_hangs(works[len(results) :], limit_s)
        return results

    async def _run_until_one_hangs(
        self, works: Sequence[Callable[[], T]], limit_s: float
    ) -> list[T | None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Queue[T] = asyncio.Queue()
        left = threading.Event()

        def work_off() -> None:
            me = threading.get_ident()
            try:
                for work in works:
                    self._began[me] = time.monotonic()
                    result = work()
                    if left.is_set() or loop.is_closed():
                        return
                    loop.call_soon_threadsafe(done.put_nowait, result)
            finally:
                self._began.pop(me, None)

        threading.Thread(target=work_off, name="prepare", daemon=True).start()
        results: list[T | None] = []
        try:
            while len(results) < len(works):
                async with asyncio.timeout(limit_s):
                    results.append(await done.get())
        except TimeoutError:
            results.append(None)
        finally:
            left.set()
        return results
