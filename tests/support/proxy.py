"""A network that misbehaves: a TCP proxy between a client and Redis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Self


class _Cut(ConnectionError):
    """By the proxy, not by either end."""


class Proxy:
    """Serves on a loopback port of its own, in a thread. Its faults may be set at any time."""

    def __init__(self, redis_port: int, cut_after: Iterable[int] = ()) -> None:
        """`cut_after`: each new connection in turn is cut after so many bytes from Redis."""
        self.cut_after = iter(cut_after)
        self.cuts = 0
        """connections cut so far"""
        self.delay_s = 0.0
        """how late everything from Redis arrives"""
        self.answer: bytes | None = None
        """an error to give to each command, which then never reaches Redis"""
        self.swallow: bytes | None = None
        """the reply to the next command that holds these bytes is lost with its connection"""
        self.sources: set[str] = set()
        """the addresses under which Redis has seen its connections"""
        self._redis_port = redis_port
        self._ends: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._on_loop(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._on_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def heal(self) -> None:
        """No faults from now on."""
        self.cut_after, self.delay_s, self.answer, self.swallow = iter(()), 0.0, None, None

    def cut_now(self) -> None:
        """Every connection there is."""
        self._on_loop(self._abort_all())

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _close(self) -> None:
        self._server.close()
        await self._abort_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _abort_all(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        try:
            from_redis, to_redis = await asyncio.open_connection("127.0.0.1", self._redis_port)
            ends.add(to_redis)
            host, port = to_redis.get_extra_info("sockname")
            self.sources.add(f"{host}:{port}")
            self._ends |= ends
            await _Link(self, reader, writer, from_redis, to_redis).run()
        except _Cut:
            self.cuts += 1
        except (ConnectionError, EOFError):
            pass  # one end has closed, or Redis is down: so does the other
        finally:
            self._ends -= ends
            for end in ends:
                end.transport.abort()


class _Link:
    """One connection, in both directions."""

    def __init__(
        self,
        proxy: Proxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_redis: asyncio.StreamReader,
        to_redis: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._from_redis, self._to_redis = from_redis, to_redis
        self._left = next(proxy.cut_after, None)
        self._muted = False

    async def run(self) -> None:
        await asyncio.gather(self._requests(), self._replies())

    async def _requests(self) -> None:
        async for command in _commands(self._reader):
            if self._proxy.answer is not None:
                self._writer.write(b"-" + self._proxy.answer + b"\r\n")
                continue
            if self._proxy.swallow is not None and self._proxy.swallow in command:
                self._proxy.swallow = None
                self._muted = True
            self._to_redis.write(command)
            await self._to_redis.drain()
        raise EOFError

    async def _replies(self) -> None:
        while some := await self._from_redis.read(65536):
            await asyncio.sleep(self._proxy.delay_s)
            if self._muted:
                raise _Cut
            self._writer.write(some[: self._left])
            await self._writer.drain()
            if self._left is not None:
                self._left -= len(some)
                if self._left <= 0:
                    raise _Cut
        raise EOFError


async def _commands(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Each command as its bytes: an array of strings."""
    while head := await reader.readline():
        parts = [head]
        for _ in range(int(head[1:])):
            size = await reader.readline()
            parts += (size, await reader.readexactly(int(size[1:]) + 2))
        yield b"".join(parts)
