"""`rose load`: submits stories at a rate and reads every stream.

Jobs arrive as a Poisson process, so there are bursts and lulls at any rate. A job that the queue
refuses is counted and not sent again.
"""

import asyncio
import itertools
import random
import signal
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from rose.errors import BrokerUnavailable, QueueFull, RoseError
from rose.protocol import Priority
from rose_cli.demo.prompts import REQUESTS
from rose_cli.options import AsJson, Queue, RedisUrl, settings_of
from rose_cli.output import print_result
from rose_producer import AsyncClient, AsyncJob, ProducerSettings, Request, TokenEvent

_REPORT_S = 10.0
_RETRY_S = 1.0
#: Streams that are read at once. The workers run the jobs beyond that all the same.
_MAX_STREAMS = 200


@dataclass
class Counts:
    submitted: int = 0
    finished: int = 0
    failed: int = 0
    refused: int = 0
    tokens: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in asdict(self).items())


def load(
    rate: Annotated[float, typer.Option(min=0.001, help="Jobs a second, on average.")] = 2.0,
    seconds: Annotated[float | None, typer.Option(help="How long; else until SIGTERM.")] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Submit stories at a rate, and read every stream: something for workers and graphs to show."""
    settings = settings_of(redis_url, queue)
    counts = asyncio.run(run(settings, rate, seconds, as_json=as_json))
    print_result(asdict(counts), str(counts), as_json=as_json)


async def run(
    settings: ProducerSettings, rate: float, seconds: float | None, *, as_json: bool
) -> Counts:
    """Submit until `seconds` have passed, or SIGTERM comes; then wait for the open streams."""
    counts, stop = Counts(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    streams: set[asyncio.Task[None]] = set()
    async with AsyncClient(settings) as client:
        if seconds is not None:
            loop.call_later(seconds, stop.set)
        reports = asyncio.create_task(_report(counts, as_json=as_json))
        for request in itertools.cycle(REQUESTS):
            if await _stopped(stop, random.expovariate(rate)):
                break
            job = await _submit(client, request, counts)
            if job is not None and len(streams) < _MAX_STREAMS:
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


async def _report(counts: Counts, *, as_json: bool) -> None:
    tokens = 0
    while True:
        await asyncio.sleep(_REPORT_S)
        rate, tokens = (counts.tokens - tokens) / _REPORT_S, counts.tokens
        facts = {"tokens_per_s": rate} | asdict(counts)
        print_result(facts, f"{rate:6.0f} tokens/s, {counts}", as_json=as_json)
