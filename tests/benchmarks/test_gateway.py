"""The gateway's benchmark runs and says what it measured; how fast decides nothing here."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gateway.sockets import GatewaySocket
from tests.conftest import needs_redis_server

_ROOT = Path(__file__).parents[2]

_HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
_STREAM = (
    b'data: {"choices":[{"text":"a"}]}\n\n'
    b'data: {"choices":[{"text":"b"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


@needs_redis_server
def test_the_benchmark_measures_the_gateway_and_the_client(tmp_path: Path) -> None:
    # when
    data = tmp_path / "data.json"
    command = [sys.executable, "-m", "benchmarks.gateway", "--scale", "tiny", "--json", str(data)]
    subprocess.run([*command, "--only", "null,first,open,batch-null"], cwd=_ROOT, check=True)
    # then
    result = json.loads(data.read_text())
    measured = {
        name: {row["contender"] for row in case["rows"]} for name, case in result["cases"].items()
    }
    both = {"through the gateway", "Python client"}
    assert measured == {
        "null": both,
        "first": both,
        "open": {"through the gateway"},
        "batch-null": {"rose batch run", "Python client"},
    }
    (served,) = result["cases"]["open"]["checks"]
    assert served["met"]


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
async def test_a_stream_is_counted_however_it_is_cut(size: int) -> None:
    # given: a server that sends it in pieces
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(_STREAM), _STREAM)
        whole = _HEADERS + body
        for start in range(0, len(whole), size):
            writer.write(whole[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        socket = await GatewaySocket.open(f"http://127.0.0.1:{port}/v1")
        # when
        times = await socket.stream("m", "x", 2)
    # then
    assert (times.events, times.tokens) == (3, 2)
    assert times.began <= times.first <= times.last


async def test_a_refusal_is_an_error() -> None:
    # given
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        socket = await GatewaySocket.open(f"http://127.0.0.1:{port}/v1")
        # then
        with pytest.raises(RuntimeError, match="429"):
            await socket.stream("m", "x", 2)
