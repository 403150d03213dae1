"""The load, in a process of its own: `python -m benchmarks.gateway.load WHAT JSON`.

Prints one line of JSON with the result; `open` prints the line `open` before, when all streams
are open. A process of its own, as clients are: its work is not the gateway's.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

from benchmarks.gateway.sockets import GatewaySocket, StreamTimes
from rose_producer import AsyncClient, AsyncJob, Request, Result, TokenEvent

_WARM_UP = 10
_TIMEOUT_S = 300.0
#: Results read at a time: what `rose batch run` has by default.
_WINDOW = 256

#: Processor time until all modules were imported: no client pays that for an event.
_IMPORTED_S = time.process_time()

#: More than any case enqueues.
NO_LIMIT: dict[str, Any] = {"max_queued_jobs": 10**8, "max_queued_bytes": 10**12}


async def through_gateway(url: str, model: str, prompt: str, count: int, tokens: int) -> Any:
    """So many streams at once, through the gateway."""
    sockets = [await GatewaySocket.open(url) for _ in range(count)]
    streams = (socket.stream(model, prompt, tokens) for socket in sockets)
    return _together(await asyncio.gather(*streams))


async def through_client(redis_url: str, prompt: str, count: int, tokens: int) -> Any:
    """The same, through one Python client."""
    async with AsyncClient(redis_url=redis_url, **NO_LIMIT) as client:
        await client.submit(prompt, max_new_tokens=1)  # connected, like the sockets
        streams = (_stream(client, prompt, tokens) for _ in range(count))
        return _together(await asyncio.gather(*streams))


async def first_tokens(
    url: str, redis_url: str, model: str, prompt: str, count: int, tokens: int
) -> Any:
    """One stream after another, by turns through the client and through the gateway."""
    socket = await GatewaySocket.open(url)
    waits: dict[str, list[float]] = {"client": [], "gateway": []}
    async with AsyncClient(redis_url=redis_url, **NO_LIMIT) as client:
        for number in range(_WARM_UP + count):
            times = {
                "client": await _stream(client, prompt, tokens),
                "gateway": await socket.stream(model, prompt, tokens),
            }
            for side, one in times.items():
                if number >= _WARM_UP:
                    waits[side].append(one.first - one.began)
    return waits


async def held_open(url: str, model: str, prompt: str, count: int, tokens: int) -> Any:
    """So many streams at once, and word when all are open, before any has an event."""
    async with AsyncExitStack() as stack:
        # Without it they would open with the first token.
        at_once = "x-rose-on-disconnect: continue\r\n"
        sockets = [await GatewaySocket.open(url, at_once) for _ in range(count)]
        for socket in sockets:
            stack.callback(socket.close)
            socket.send(model, prompt, tokens)
        for socket in sockets:
            await socket.opened()
        print("open", flush=True)
        streams = await asyncio.gather(*(socket.ended() for socket in sockets))
    return {**_together(streams), "served": sum(one.tokens == tokens for one in streams)}


async def batch(redis_url: str, source: str, output: str) -> Any:
    """A file of requests by hand: submit all, then read as many results at a time as
    `rose batch run` has lines under way."""
    began = time.perf_counter()
    lines = _lines(source)
    async with AsyncClient(redis_url=redis_url, **NO_LIMIT) as client:
        jobs = await client.submit_many(_request(line["body"]) for line in lines)
        room = asyncio.Semaphore(_WINDOW)

        async def result(job: AsyncJob) -> Result:
            async with room:
                return await job.result()

        results = await asyncio.gather(*map(result, jobs))
    _write(output, lines, results)
    return {"seconds": time.perf_counter() - began}


def _lines(path: str) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def _write(path: str, lines: list[Any], results: list[Result]) -> None:
    with Path(path).open("w") as file:
        for line, answer in zip(lines, results, strict=True):
            row = {"custom_id": line["custom_id"], "text": answer.text, "id": answer.job_id}
            file.write(json.dumps(row) + "\n")


def _request(body: dict[str, Any]) -> Request:
    sampling = {name: body[name] for name in ("temperature", "ignore_eos")}
    return Request(
        body["prompt"],
        priority="low",
        sampling={**sampling, "max_new_tokens": body["max_tokens"]},
    )


WHAT: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "gateway": through_gateway,
    "client": through_client,
    "first": first_tokens,
    "open": held_open,
    "batch": batch,
}


async def _stream(client: AsyncClient, prompt: str, tokens: int) -> StreamTimes:
    began, first, events, cursor = time.perf_counter(), 0.0, 0, 0
    job = await client.submit(prompt, max_new_tokens=tokens, temperature=0.0, ignore_eos=True)
    async with aclosing(job.stream(timeout_s=_TIMEOUT_S)) as stream:
        async for event in stream:
            if isinstance(event, TokenEvent) and not events:
                first = time.perf_counter()
            events += 1
            cursor = event.cursor
    return StreamTimes(began, first, time.perf_counter(), events, cursor)


def _together(streams: list[StreamTimes]) -> dict[str, float]:
    """From the first request to the last event of all. CPU seconds are those of this process
    since its imports."""
    first, last = min(one.first for one in streams), max(one.last for one in streams)
    return {
        "tokens": sum(one.tokens for one in streams),
        "events": sum(one.events for one in streams),
        "seconds": last - min(one.began for one in streams),
        "streaming_s": last - first,
        "cpu_s": time.process_time() - _IMPORTED_S,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(WHAT[sys.argv[1]](**json.loads(sys.argv[2])))), flush=True)
