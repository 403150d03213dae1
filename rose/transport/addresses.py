"""Connections to a name that has several addresses. One of them may take no connection and refuse
none, such as that of a machine that is gone."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any

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
