"""A network that misbehaves: a TCP proxy between a client and Redis."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Self

import hiredis

_CHUNK = 65536
#: A cut that meets no traffic for this long breaks the idle connection.
_IDLE_S = 1.0

CutMode = Literal["reply", "request", "mute", "idle", "silence"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Breaks `count` connections, those with the latest traffic first."""

    mode: CutMode = "reply"
    """in the middle of a reply or of a request; mute: replies vanish for `for_s`, then the cut"""
    count: int = 1
    share: float = 0.5
    """of the bytes that are let through"""
    reset: bool = False
    """end with RST rather than FIN"""
    for_s: float = 1.0


class _Broken(ConnectionError):
    """By the proxy, not by either end."""


class Proxy:
    """Serves on a loopback port of its own, in a thread. Its faults may be set at any time."""

    def __init__(self, redis_port: int, cut_after: Iterable[int] = ()) -> None:
        """`cut_after`: each new connection in turn is cut after so many bytes from Redis."""
        self.cut_after = iter(cut_after)
        self.cut_log: list[tuple[float, CutMode]] = []
        """each connection that was cut in traffic or by `cut`; Unix seconds"""
        self.delay_s = 0.0
        """how late everything from Redis arrives"""
        self.request_delay_s = 0.0
        self.answer: bytes | None = None
        """an error to give to each command, which then never reaches Redis"""
        self.swallow: bytes | None = None
        """the reply to the next command that holds these bytes is lost with its connection"""
        self.swallow_times = 1
        """how many replies are lost so"""
        self.sources: set[str] = set()
        """the addresses under which Redis has seen its connections"""
        self.peak = 0
        """the most connections that were open at once, but for those in a silence"""
        self._redis_port = redis_port
        self._links: set[_Link] = set()
        self._passable = asyncio.Event()
        self._passable.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def cuts(self) -> int:
        return len(self.cut_log)

    @property
    def open(self) -> int:
        """Connections."""
        return len(self._links)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._on_loop(asyncio.start_server(self._serve, "127.0.0.1", 0)).result(90)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._on_loop(self._close()).result(90)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def heal(self) -> None:
        """No faults from now on."""
        self.cut_after, self.answer = iter(()), None
        self.swallow, self.swallow_times = None, 1
        self.delay_s = self.request_delay_s = 0.0

    def silence(self) -> None:
        """Accept connections and bytes and pass none on, in neither direction, and say nothing."""
        self._loop.call_soon_threadsafe(self._passable.clear)

    def speak(self, *, lost: bool = False) -> None:
        """The silence is over. What was held back arrives late, as when packets were dropped and
        are sent again; or it is `lost`, and each connection with it."""
        self._loop.call_soon_threadsafe(self._speak, lost)

    def cut_now(self) -> None:
        """Every connection there is."""
        self._on_loop(self._break_all()).result(90)

    def cut(self, cut: Cut) -> Future[None]:
        """Where the connections carry traffic; the result comes when all of it is done."""
        return self._on_loop(self._cut(cut))

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _close(self) -> None:
        self._server.close()
        await self._break_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _break_all(self) -> None:
        for link in self._links:
            link.abort()

    def _speak(self, lost: bool) -> None:
        if lost:
            for link in self._links:
                link.cut("silence")
        self._passable.set()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To what is behind it. Raises: OSError"""
        return await asyncio.open_connection("127.0.0.1", self._redis_port)

    async def passable(self) -> None:
        await self._passable.wait()

    async def _cut(self, cut: Cut) -> None:
        # A connection that another cut has keeps it: a muted one must not go on after what it has
        # lost, as if nothing were missing.
        free = [link for link in self._links if link.armed is None]
        chosen = sorted(free, key=lambda link: link.used_at)[-cut.count :]
        for link in chosen:
            link.armed, link.muted = cut, cut.mode == "mute"
        await asyncio.sleep(cut.for_s if cut.mode == "mute" else _IDLE_S)
        for link in chosen:
            if link.armed is not None and link in self._links:
                link.cut("mute" if link.muted else "idle")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_redis, to_redis = await self.connect()
        except OSError:  # Redis is down, so the client is disconnected
            writer.transport.abort()
            return
        except asyncio.CancelledError:  # the proxy closes
            writer.transport.abort()
            raise
        host, port = to_redis.get_extra_info("sockname")
        self.sources.add(f"{host}:{port}")
        link = _Link(self, reader, writer, from_redis, to_redis)
        self._links.add(link)
        if self._passable.is_set():  # a silent proxy cannot tell whether a client has hung up
            self.peak = max(self.peak, len(self._links))
        try:
            await link.run()
        except (ConnectionError, EOFError):
            pass  # one end has closed or was cut: close the other
        finally:
            self._links.discard(link)
            link.abort()


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
        self.armed: Cut | None = None
        self.muted = False
        """what Redis says is lost; what it is told is not"""
        self.used_at = 0.0
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._from_redis, self._to_redis = from_redis, to_redis
        self._bytes_left = next(proxy.cut_after, None)
        self._swallows = False
        self._commands = hiredis.Reader()

    async def run(self) -> None:
        await asyncio.gather(self._requests(), self._replies())

    def cut(self, mode: CutMode) -> None:
        cut, self.armed = self.armed, None
        self._proxy.cut_log.append((time.time(), mode))
        self.abort(reset=cut is not None and cut.reset)

    def abort(self, *, reset: bool = False) -> None:
        for end in (self._writer, self._to_redis):
            if reset and not end.transport.is_closing():
                connection = end.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()

    async def _requests(self) -> None:
        proxy = self._proxy
        while data := await self._reader.read(_CHUNK):
            self.used_at = time.monotonic()
            await asyncio.sleep(proxy.request_delay_s)
            await proxy.passable()
            commands = self._count_commands(data)
            if proxy.answer is not None:
                self._writer.write((b"-" + proxy.answer + b"\r\n") * commands)
                continue
            if proxy.swallow is not None and proxy.swallow in data:
                proxy.swallow_times -= 1
                if proxy.swallow_times <= 0:
                    proxy.swallow, proxy.swallow_times = None, 1
                self._swallows = True
            await self._forward(data, self._to_redis, "request")
        raise EOFError

    async def _replies(self) -> None:
        while data := await self._from_redis.read(_CHUNK):
            self.used_at = time.monotonic()
            await asyncio.sleep(self._proxy.delay_s)
            await self._proxy.passable()
            if self.muted:
                continue
            if self._swallows:
                self._break("reply")
            await self._forward(data[: self._bytes_left], self._writer, "reply")
            if self._bytes_left is not None:
                self._bytes_left -= len(data)
                if self._bytes_left <= 0:
                    self._break("reply")
        raise EOFError

    async def _forward(self, data: bytes, sink: asyncio.StreamWriter, direction: CutMode) -> None:
        cut = self.armed if self.armed is not None and self.armed.mode == direction else None
        sink.write(data if cut is None else data[: int(len(data) * cut.share)])
        await sink.drain()
        if cut is not None:
            self._break(direction)

    def _break(self, mode: CutMode) -> None:
        self.cut(mode)
        raise _Broken

    def _count_commands(self, data: bytes) -> int:
        """Those that end in `data`."""
        count = 0
        try:
            self._commands.feed(data)
            while self._commands.gets() is not False:
                count += 1
        except hiredis.ProtocolError:  # a replica says other things
            self._commands = hiredis.Reader()
        return count
