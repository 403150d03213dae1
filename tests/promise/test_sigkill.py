"""The promise, with the real engine: two workers, 200 jobs, one SIGKILL, every token once."""

import asyncio
import signal
from collections.abc import Callable, Sequence

import redis

from rose.protocol import GROUP, Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, AsyncJob, Event, FinishedEvent, Request, TokenEvent
from tests.support.bench import until
from tests.support.echo import has_no_jobs

JOBS = 200
OPENINGS = ("Once upon a time", "The weather today", "One morning", "Dear friend,", "A dog")


def requests() -> list[Request]:
    """Half greedy, half sampled with a seed; prompts and answers of many lengths."""
    return [
        Request(
            " ".join(OPENINGS[(n + k) % len(OPENINGS)] for k in range(n % 4 + 1)),
            sampling={
                "max_new_tokens": 20 + n % 40,
                "ignore_eos": True,
                **({"temperature": 0.9, "top_p": 0.95, "seed": n} if n % 2 else {}),
            },
        )
        for n in range(JOBS)
    ]


async def collect(job: AsyncJob, events: list[Event]) -> None:
    async for event in job.stream(timeout_s=100):
        events.append(event)  # noqa: PERF401 - others look at it meanwhile


async def run_all(
    client: AsyncClient, in_the_middle: Callable[[Sequence[list[Event]]], bool] | None = None
) -> list[list[Event]]:
    """Submit and stream everything at once. `in_the_middle` is asked until it is true, or until
    all streams have ended."""
    jobs = await client.submit_many(requests())
    streams: list[list[Event]] = [[] for _ in jobs]
    readers = [asyncio.create_task(collect(j, s)) for j, s in zip(jobs, streams, strict=True)]
    if in_the_middle is not None:
        await until(lambda: in_the_middle(streams) or all(reader.done() for reader in readers))
    await asyncio.gather(*readers)
    return streams


def content(stream: Sequence[Event]) -> tuple[list[int], str, str]:
    tokens = [event for event in stream if isinstance(event, TokenEvent)]
    (end,) = [event for event in stream if isinstance(event, FinishedEvent)]
    ids = [token_id for event in tokens for token_id in event.token_ids]
    return ids, "".join(event.text for event in tokens), end.reason


def jobs_in_hand(raw: redis.Redis, partition: Partition, worker: WorkerProcess) -> int:
    """Of a worker that stands still."""
    raw.ping()  # answered behind what the worker had sent
    return sum(
        len(raw.xpending_range(stream, GROUP, "-", "+", JOBS, worker.name))
        for stream in partition.all_jobs
    )


async def test_every_stream_survives_a_sigkill_unchanged(
    broker: EmbeddedBroker,
    queue: str,
    start_worker: Callable[..., WorkerProcess],
    raw: redis.Redis,
    partition: Partition,
) -> None:
    # given
    settings = {"engine": "rose", "torch_threads": 1, "max_batch_size": 32, "ready": False}
    workers = [start_worker(lease_s=2, **settings) for _ in range(2)]
    for worker in workers:
        await asyncio.to_thread(worker.wait_ready)
    victim = workers[0]

    def kill_midway(streams: Sequence[list[Event]]) -> bool:
        """Where some streams have ended and the victim has others in hand."""
        if not any(stream and stream[-1].is_terminal for stream in streams):
            return False
        victim.signal(signal.SIGSTOP)  # what it has in hand stays in hand
        if jobs_in_hand(raw, partition, victim) < 5:
            victim.signal(signal.SIGCONT)
            return False
        victim.kill()
        return True

    # when
    async with AsyncClient(redis_url=broker.url, queue=queue) as client:
        disturbed = await run_all(client, kill_midway)
        while victim.running:  # nobody looked in time: once more
            disturbed = await run_all(client, kill_midway)
        undisturbed = await run_all(client)
    # then
    for stream in disturbed:
        assert [event.index for event in stream] == list(range(len(stream)))
        assert stream[-1].is_terminal
    assert [content(s) for s in disturbed] == [content(s) for s in undisturbed]
    assert workers[1].metrics()["rose_jobs_redelivered_total"] >= 5
    assert has_no_jobs(raw, partition)
