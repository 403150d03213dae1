"""Connections to a name with several addresses. One of them may neither accept nor refuse
connections, such as that of a machine that is gone."""

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

from aiohappyeyeballs import start_connection

#: Before the next address is tried beside those that have not answered (RFC 8305).
_HEAD_START_S = 0.25


async def connected_socket(host: str, port: int) -> socket.socket:
    """To the first address that answers.

    Raises: OSError: none does, or the name has none.
    """
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not addresses:
        raise OSError(f"{host} has no address")
    return await start_connection(addresses, happy_eyeballs_delay=_HEAD_START_S)


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
