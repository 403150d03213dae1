"""The network before Redis, and its faults: `python -m tests.chaos.proxy STAGE PORTS`.

One listening port for each process, so that a fault hits one and spares the rest. Orders come as
JSON lines on stdin; what was done goes to the journal `proxy`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from tests.chaos.journal import Journal
from tests.chaos.stage import Stage

_CHUNK = 65536
#: A cut that finds no traffic to cut through strikes the connection as it is.
_PATIENCE_S = 1.0

CutMode = Literal["reply", "request", "mute", "idle"]


class Order(BaseModel):
    """`cut`: break `count` connections of `slot`. `slow`: for `for_s`, every chunk is late."""

    what: Literal["cut", "slow"]
    slot: str
    count: int = 1
    mode: CutMode = "reply"
    """in the middle of a reply or of a request; mute: replies vanish for `for_s`, then the cut"""
    share: float = 0.5
    """of the chunk that is let through"""
    reset: bool = False
    """end with RST rather than FIN"""
    for_s: float = 1.0
    delay_s: float = 0.0


@dataclass(eq=False)
class _Link:
    """One connection: a client's end and Redis's end."""

    client: asyncio.StreamWriter
    redis: asyncio.StreamWriter
    armed: Order | None = None
    used_at: float = 0.0
    mute: bool = False
    """What Redis says is lost; what it is told is not."""

    def break_now(self, *, reset: bool = False) -> None:
        for end in (self.client, self.redis):
            if reset and not end.transport.is_closing():
                connection = end.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()


@dataclass(eq=False)
class Line:
    """All connections of one process."""

    name: str
    redis_port: int
    journal: Journal
    links: set[_Link] = field(default_factory=set)
    delay_s: float = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, redis = await asyncio.open_connection("127.0.0.1", self.redis_port)
        except OSError:  # Redis is down: so is the line
            writer.transport.abort()
            return
        link = _Link(writer, redis)
        self.links.add(link)
        pumps = (
            asyncio.create_task(self._pump(link, reader, redis, "request")),
            asyncio.create_task(self._pump(link, upstream, writer, "reply")),
        )
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        link.break_now()
        self.links.discard(link)

    async def close(self) -> None:
        while self.links:
            for link in self.links:
                link.break_now()
            await asyncio.sleep(0)

    async def obey(self, order: Order) -> None:
        if order.what == "slow":
            self.delay_s = order.delay_s
            await asyncio.sleep(order.for_s)
            self.delay_s = 0.0
            return
        # Those with the latest traffic: there is something to cut through.
        chosen = sorted(self.links, key=lambda link: link.used_at)[-order.count :]
        for link in chosen:
            link.armed = order
            link.mute = order.mode == "mute"
        await asyncio.sleep(order.for_s if order.mode == "mute" else _PATIENCE_S)
        for link in chosen:
            if link.armed is not None and link in self.links:
                self._cut(link, order, "mute" if link.mute else "idle")

    def _cut(self, link: _Link, order: Order, mode: CutMode) -> None:
        link.armed = None
        link.break_now(reset=order.reset)
        self.journal.write(time.time(), "cut", self.name, mode)

    async def _pump(
        self,
        link: _Link,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        direction: Literal["request", "reply"],
    ) -> None:
        try:
            while data := await source.read(_CHUNK):
                link.used_at = time.monotonic()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if link.mute and direction == "reply":
                    continue
                order = link.armed
                if order is not None and order.mode == direction:
                    sink.write(data[: int(len(data) * order.share)])
                    await sink.drain()
                    self._cut(link, order, direction)
                    return
                sink.write(data)
                await sink.drain()
        except OSError:  # one end is gone: the other one follows
            return


@asynccontextmanager
async def listening(lines: Mapping[Line, int]) -> AsyncIterator[None]:
    """Every line on its port; leaving breaks every connection."""
    servers = [
        await asyncio.start_server(line.serve, "127.0.0.1", port) for line, port in lines.items()
    ]
    try:
        yield
    finally:
        for server in servers:
            server.close()
        for line in lines:
            await line.close()


async def _main(stage: Stage, ports: dict[str, int], redis_port: int) -> None:
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    journal = stage.journal("proxy")
    lines = {name: Line(name, redis_port, journal) for name in ports}
    async with listening({lines[name]: port for name, port in ports.items()}):
        at_work: set[asyncio.Task[None]] = set()
        while text := await orders.readline():
            order = Order.model_validate_json(text)
            task = asyncio.create_task(lines[order.slot].obey(order))
            at_work.add(task)
            task.add_done_callback(at_work.discard)


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[2])
    asyncio.run(_main(Stage.from_argv(), told["ports"], told["redis_port"]))


if __name__ == "__main__":
    main()
