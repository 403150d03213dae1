"""Pipelines of commands to one Redis server.

redis-py spends more time on a command than Redis does on most scripts: a pool with a lock,
telemetry, tasks and turns of the event loop, packing in Python. So redis-py only opens the
connections; hiredis packs the commands and reads the replies.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import hiredis
import redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import InvalidResponse

from rose.transport.redis_internals import close_connection, close_descriptor, open_connection

#: Bytes that wait to be sent; more is not given to a connection before it has sent most of them.
_CONGESTED_BYTES = 1 << 20

#: The most that is read at once.
_READ_BYTES = 1 << 16

#: A connection that nobody has used for so long is closed.
IDLE_S = 30.0

Command = Sequence[str | bytes | int]

#: Its annotation allows for one word only.
_pack_texts: Callable[[Any], bytes] = hiredis.pack_command


def pack(command: Command) -> bytes:
    """hiredis is given no numbers: to write one it runs Python, and the process dies if a signal
    handler raises there."""
    if not _TEXTS.issuperset(map(type, command)):
        command = [word if isinstance(word, str | bytes) else str(word) for word in command]
    return _pack_texts(tuple(command))


_TEXTS = frozenset((str, bytes))

#: Of this process. A forked child closes its descriptors of them, which sends nothing.
_open: WeakSet[PipelinedConnection] = WeakSet()


class PipelinedConnection(asyncio.BufferedProtocol):
    """One connection, opened. Replies come one by one, as Redis gave them, errors among them.

    It reads into a buffer of its own: a plain Protocol would get a new one of 256 KiB each time.
    asyncio is given a view of it: over TLS it reads a second record into a slice of what it got,
    and the slice of a bytearray is a copy.
    """

    def __init__(
        self,
        on_reply: Callable[[Any], None],
        on_lost: Callable[[str], None],
        on_flowing: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost` is called once, with the reason; also after `close`. `on_flowing`: it is no
        longer congested."""
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._on_flowing = on_flowing
        self._reason = "closed"
        self._lost = True
        self.congested = False
        """more waits to be sent than Redis takes"""
        self.heard_at = 0.0
        """when anything came last, in the event loop's time"""

    async def open(self, connection: AbstractConnection, timeout_s: float) -> None:
        """Raises: CONNECTION_LOST"""
        self._transport, parse_error = await open_connection(connection, timeout_s)
        self._connection = connection
        replies = hiredis.Reader(protocolError=InvalidResponse, replyError=parse_error)
        self._replies: Any = replies  # its annotation allows no bytearray
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._former = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self._transport.set_write_buffer_limits(high=_CONGESTED_BYTES)
        self._loop = asyncio.get_running_loop()
        self._lost = False
        _open.add(self)

    def send(self, commands: Sequence[Command]) -> None:
        self.write(b"".join(map(pack, commands)))

    def write(self, packed: bytes) -> None:
        """Lost where the connection is: `on_lost` tells, which may come after this."""
        if not self._transport.is_closing():
            self._transport.write(packed)

    def close(self, reason: str = "closed") -> None:
        self._reason = reason
        self._transport.abort()  # buffered writes may never get through
        close_connection(self._connection)

    def close_in_child(self) -> None:
        """Only the descriptor of this process."""
        close_descriptor(self._transport)

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self._on_flowing()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio asks so
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._loop.time()
        self._replies.feed(self._buffer, 0, nbytes)
        try:
            while (reply := self._replies.gets()) is not False:
                self._on_reply(reply)
        except (redis.RedisError, ValueError) as error:
            self.close(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._former.connection_lost(error)
            close_connection(self._connection)
            self._on_lost(str(error) if error else self._reason)


def _close_in_child() -> None:
    for connection in list(_open):
        connection.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)


def field_of(fields: Sequence[bytes], name: bytes) -> bytes | None:
    """From a stream's entry as Redis gives it: name, value, ...; the last of that name."""
    if len(fields) == 2:  # as in a log
        return fields[1] if fields[0] == name else None
    return dict(zip(fields[::2], fields[1::2], strict=True)).get(name)


def without_errors(replies: list[Any]) -> list[Any]:
    """Raised here and not by a pipeline of redis-py, which would quote the call and with it the
    prompt."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
