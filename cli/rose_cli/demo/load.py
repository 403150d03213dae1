"""A load: `python -m rose_cli.demo.load --rate 2` submits stories and reads every stream.

Jobs come as customers do (a Poisson process), so there are bursts and lulls at any rate. One that
the queue refuses is counted and not sent again.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from rose.errors import BrokerUnavailable, QueueFull, RoseError
from rose.protocol import Priority
from rose_cli.demo.prompts import REQUESTS
from rose_producer import AsyncClient, AsyncJob, Request, TokenEvent

_REPORT_S = 10.0
_RETRY_S = 1.0
#: Streams that are read at once; what comes beyond is left to the workers.
_MOST_STREAMS = 200


@dataclass
class Counts:
    submitted: int = 0
    finished: int = 0
    failed: int = 0
    refused: int = 0
    tokens: int = 0


async def run(rate: float, seconds: float | None) -> Counts:
    """Until `seconds` have passed, or SIGTERM; then the streams in hand end."""
    counts, stop = Counts(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    if seconds is not None:
        loop.call_later(seconds, stop.set)
    streams: set[asyncio.Task[None]] = set()
    async with AsyncClient() as client:
        reports = asyncio.create_task(_report(counts))
        for request in itertools.cycle(REQUESTS):
            if await _stopped(stop, random.expovariate(rate)):
                break
            job = await _submit(client, request, counts)
            if job is not None and len(streams) < _MOST_STREAMS:
                stream = asyncio.create_task(_read(job, counts))
                streams.add(stream)
                stream.add_done_callback(streams.discard)
        await asyncio.gather(*streams)
        reports.cancel()
    return counts


async def _stopped(stop: asyncio.Event, within_s: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), within_s)
    except TimeoutError:
        return False
    return True


async def _submit(client: AsyncClient, request: Request, counts: Counts) -> AsyncJob | None:
    try:
        job = await client.submit(
            request.prompt,
            priority=random.choice(list(Priority)),  # noqa: S311 - no secret
            **request.sampling,
        )
    except QueueFull:
        counts.refused += 1
        return None
    except BrokerUnavailable:
        counts.refused += 1
        await asyncio.sleep(_RETRY_S)
        return None
    counts.submitted += 1
    return job


async def _read(job: AsyncJob, counts: Counts) -> None:
    try:
        async for event in job.stream():
            if isinstance(event, TokenEvent):
                counts.tokens += len(event.token_ids)
        counts.finished += 1
    except RoseError:
        counts.failed += 1


async def _report(counts: Counts) -> None:
    began, before = time.monotonic(), 0
    while True:
        await asyncio.sleep(_REPORT_S)
        rate = (counts.tokens - before) / _REPORT_S
        before = counts.tokens
        typer.echo(f"{time.monotonic() - began:6.0f} s  {rate:6.0f} tokens/s  {counts}")


def main(
    rate: Annotated[float, typer.Option(min=0.001, help="Jobs a second, on average.")] = 2.0,
    seconds: Annotated[float | None, typer.Option(help="How long; else until SIGTERM.")] = None,
) -> None:
    """Submit stories to the queue of ROSE_REDIS_URL, and read them."""
    typer.echo(str(asyncio.run(run(rate, seconds))))


if __name__ == "__main__":
    typer.run(main)
