"""The network's faults, each on a connection to a server that answers `echo:` and what it got."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rose_cli.demo.broker import free_port
from tests.chaos import journal
from tests.chaos.journal import Journal
from tests.chaos.proxy import CutMode, Line, Order, listening


class Echo:
    def __init__(self) -> None:
        self.heard = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                self.heard += data
                writer.write(b"echo:" + data)
                await writer.drain()
        except ConnectionError:
            pass  # as a cut should look from here
        finally:
            writer.close()


@asynccontextmanager
async def a_line(folder: Path) -> AsyncIterator[tuple[Line, Echo, int]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    line = Line("worker-0", server.sockets[0].getsockname()[1], Journal(folder / "proxy.jsonl"))
    port = free_port()
    try:
        async with listening({line: port}):
            yield line, echo, port
    finally:
        server.close()


def cuts(folder: Path) -> list[str]:
    return [mode for *_, mode in journal.read(folder / "proxy.jsonl")]


async def ask(port: int, question: bytes = b"0123456789") -> bytes:
    """What comes back until the connection ends, or the answer is complete."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        writer.write(question)
        while len(got) < len(question) + 5 and (data := await reader.read(1000)):
            got += data
    except ConnectionError:
        pass  # what came before it counts
    finally:
        writer.close()
    return got


async def test_what_is_not_cut_passes_both_ways(tmp_path: Path) -> None:
    async with a_line(tmp_path) as (_, _, port):
        assert await ask(port) == b"echo:0123456789"
    assert cuts(tmp_path) == []


@pytest.mark.parametrize(
    ("mode", "arrives", "heard"),
    [
        ("reply", b"echo:01", b"0123456789"),  # half of the reply; the request was carried out
        ("request", b"", b"01234"),  # half of the request
    ],
)
async def test_a_cut_in_the_middle(
    tmp_path: Path, mode: CutMode, arrives: bytes, heard: bytes
) -> None:
    async with a_line(tmp_path) as (line, echo, port):
        # given: a connection in use
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        assert await reader.readexactly(6) == b"echo:x"
        echo.heard = b""
        # when
        order = asyncio.create_task(line.obey(Order(what="cut", slot=line.name, mode=mode)))
        await asyncio.sleep(0.05)
        writer.write(b"0123456789")
        got = b""
        try:
            while data := await reader.read(1000):
                got += data
        except ConnectionError:
            pass  # a reset, after what had been let through
        writer.close()
        await order
        # then
        assert arrives.startswith(got)
        assert echo.heard == heard
        assert cuts(tmp_path) == [mode]
        # and the next connection is whole
        assert await ask(port) == b"echo:0123456789"


async def test_a_muted_connection_loses_replies_and_then_breaks(tmp_path: Path) -> None:
    async with a_line(tmp_path) as (line, echo, port):
        # given
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await reader.readexactly(6)
        # when
        mute = Order(what="cut", slot=line.name, mode="mute", for_s=0.3)
        order = asyncio.create_task(line.obey(mute))
        await asyncio.sleep(0.05)
        writer.write(b"silence")
        # then
        assert await reader.read(100) == b""  # and not the answer
        writer.close()
        await order
        assert echo.heard == b"xsilence"
        assert cuts(tmp_path) == ["mute"]


async def test_an_idle_connection_is_cut_all_the_same(tmp_path: Path) -> None:
    async with a_line(tmp_path) as (line, _, port):
        # given
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await reader.readexactly(6)
        # when
        order = asyncio.create_task(line.obey(Order(what="cut", slot=line.name, reset=True)))
        # then
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        await order
        assert cuts(tmp_path) == ["idle"]


async def test_a_slow_line_is_late_and_recovers(tmp_path: Path) -> None:
    async with a_line(tmp_path) as (line, _, port):
        # when
        slow = Order(what="slow", slot=line.name, delay_s=0.1, for_s=0.5)
        order = asyncio.create_task(line.obey(slow))
        await asyncio.sleep(0.01)
        began = time.monotonic()
        # then: late each way, and complete
        assert await ask(port) == b"echo:0123456789"
        assert time.monotonic() - began >= 0.2
        await order
        assert line.delay_s == 0
    assert cuts(tmp_path) == []


async def test_without_redis_there_is_no_connection(tmp_path: Path) -> None:
    line = Line("worker-0", free_port(), Journal(tmp_path / "proxy.jsonl"))
    port = free_port()
    async with listening({line: port}):
        assert await ask(port) == b""
