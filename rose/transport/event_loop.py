"""Futures and connections belong to the event loop in which they were made."""

import asyncio

from rose.errors import WrongEventLoop


class LoopGuard:
    """The event loop in which something was used first, and where it may be used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """In another loop the reply would never arrive.

        Raises: WrongEventLoop
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        elif not self.is_here():
            raise WrongEventLoop(
                "this AsyncClient belongs to the event loop in which it was used first, and this "
                "is another one: make one in each (in each asyncio.run, in each thread)"
            )

    def is_here(self) -> bool:
        """Whether it was used, and in the running loop."""
        return self._loop is asyncio.get_running_loop()
