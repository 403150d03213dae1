"""Connections to a name with several addresses. One of them may neither accept nor refuse
connections, such as that of a machine that is gone."""

import asyncio
import socket

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
