"""Threads that an event loop gives work to."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier


def started_pool(size: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads all run. To start one, Python waits until it says so, for ever if it
    ends before for want of memory; and an event loop must not wait."""
    pool, begun = ThreadPoolExecutor(size, name), Barrier(size + 1)
    for _ in range(size):
        pool.submit(begun.wait)
    begun.wait()
    return pool
