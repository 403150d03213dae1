"""Connections to a name that has several addresses. One of them may take no connection and refuse
none, such as that of a machine that is gone."""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import socket
import time
from collections import deque
from contextlib import closing
from typing import Any, cast

#: Before the next address is tried beside those that have not answered (RFC 8305).
_HEAD_START_S = 0.25


async def connected_socket(host: str, port: int) -> socket.socket:
    """To the first address that answers.

    Raises: OSError: none does; that of the first one that has failed.
    """
    loop = asyncio.get_running_loop()
    addresses = deque(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    errors: list[BaseException] = []
    attempts: set[asyncio.Task[socket.socket]] = set()
    try:
        while addresses or attempts:
            if addresses:
                family, _, protocol, _, address = addresses.popleft()
                attempts.add(loop.create_task(_attempt(family, protocol, address)))
            done, attempts = await asyncio.wait(
                attempts,
                timeout=_HEAD_START_S if addresses else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            errors += [error for task in done if (error := task.exception()) is not None]
            connected = [task.result() for task in done if task.exception() is None]
            for surplus in connected[1:]:
                surplus.close()
            if connected:
                return connected[0]
    finally:
        for task in attempts:
            # It may have ended just when whoever asked was cancelled.
            if not task.cancel() and not task.cancelled() and task.exception() is None:
                task.result().close()
    raise errors[0] if errors else OSError(f"{host} has no address")


async def _attempt(family: int, protocol: int, address: Any) -> socket.socket:
    """Raises: OSError"""
    attempt = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        attempt.setblocking(False)
        await asyncio.get_running_loop().sock_connect(attempt, address)
    except BaseException:
        attempt.close()
        raise
    return attempt


def connected_blocking_socket(host: str, port: int, timeout_s: float) -> socket.socket:
    """As `connected_socket`, in any thread: also where somebody's event loop runs.

    Raises: OSError: as there. TimeoutError: none answers in time.
    """
    deadline = time.monotonic() + timeout_s
    addresses = deque(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    with closing(_Attempts()) as attempts:
        while addresses or attempts.under_way:
            if addresses:
                family, _, protocol, _, address = addresses.popleft()
                attempts.begin(family, protocol, address)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no address of {host} has answered in {timeout_s:g} s")
            connected = attempts.wait(min(left_s, _HEAD_START_S) if addresses else left_s)
            if connected is not None:
                return connected
        raise attempts.errors[0] if attempts.errors else OSError(f"{host} has no address")


class _Attempts:
    """To connect, without an event loop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.under_way: set[socket.socket] = set()
        self.errors: list[OSError] = []

    def begin(self, family: int, protocol: int, address: Any) -> None:
        attempt = socket.socket(family, socket.SOCK_STREAM, protocol)
        self.under_way.add(attempt)
        attempt.setblocking(False)
        code = attempt.connect_ex(address)
        if code in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._selector.register(attempt, selectors.EVENT_WRITE)
        else:
            self._fail(attempt, code)

    def wait(self, timeout_s: float) -> socket.socket | None:
        """Until one ends. Returns it if it is connected."""
        for key, _ in self._selector.select(timeout_s) if self.under_way else ():
            attempt: Any = key.fileobj
            self._selector.unregister(attempt)
            if code := attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._fail(attempt, code)
                continue
            self.under_way.remove(attempt)
            attempt.setblocking(True)
            return cast(socket.socket, attempt)
        return None

    def _fail(self, attempt: socket.socket, code: int) -> None:
        self.under_way.remove(attempt)
        attempt.close()
        self.errors.append(OSError(code, os.strerror(code)))

    def close(self) -> None:
        self._selector.close()
        for attempt in self.under_way:
            attempt.close()
