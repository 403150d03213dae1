"""The service: how soon a worker is ready, and what the queue costs.

Through Redis means everything: producer, redis-server, worker, and a streaming subscriber for
every request, all on this machine.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.board import Board, at_least, at_most, below, percentile
from benchmarks.engine.contenders.ours import Ours
from benchmarks.engine.scale import Scale
from benchmarks.runner import AsyncCase, Case, in_turn
from benchmarks.workload import Workload, random_prompt
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, AsyncJob, Request, TokenEvent
from roseinfer.demo_model import MODEL_PATH

RATE = "tokens/s"
FIRST = "time to first token p50, ms"
FIRST_P99 = "time to first token p99, ms"
ADDED = "time to first token added by the queue, p50, ms"
IN_PROCESS = "in process"
THROUGH_REDIS = "through Redis"
READY = "from `rose worker` to ready, s"
_MAX_START_S = 3
_MAX_ADDED_MS = 2
_TIMEOUT_S = 600
_PROMPT_TOKENS = 64


class Start(Case):
    """From the command to a worker that takes jobs."""

    title = "Start, built-in model"

    def round(self, board: Board, turn: int) -> None:  # noqa: ARG002 - every round is the same
        with EmbeddedBroker() as broker:
            began = time.perf_counter()
            with WorkerProcess("bench", broker.url) as worker:
                worker.wait_ready()
                seconds = time.perf_counter() - began
        board.add("a worker", {READY: seconds})

    def judge(self, board: Board) -> None:
        board.check_figure((READY, "a worker"), below(_MAX_START_S))


@dataclass
class Service(AsyncCase):
    """What the queue costs, in tokens per second and in time to the first token."""

    model: str
    ours: Ours
    redis_url: str
    scale: Scale
    min_ratio: float = 0.97

    def __post_init__(self) -> None:
        subscribers = f"{self.scale.requests} streaming subscribers"
        self.title = f"Through Redis, {subscribers}: {self.model}"

    async def measure(self, board: Board, turn: int) -> None:
        vocabulary = self.ours.engine.vocab_size
        work = Workload.draw(self.scale.requests, vocabulary, turn, self.scale.max_tokens)
        async with AsyncClient(redis_url=self.redis_url) as client:
            for place in in_turn([IN_PROCESS, THROUGH_REDIS], turn):
                if place == IN_PROCESS:
                    rate = (await asyncio.to_thread(self.ours.run, work)).rate
                else:
                    rate = await through_redis(client, work)
                board.add(place, {RATE: rate})
            pairs = []
            for number in range(self.scale.first_tokens):
                prompt = random_prompt(_PROMPT_TOKENS, vocabulary, seed=f"first/{turn}/{number}")
                (alone,) = await asyncio.to_thread(self.ours.token_times, prompt, 1)
                pairs.append((alone, await first_token(client, prompt)))
        for index, place in enumerate((IN_PROCESS, THROUGH_REDIS)):
            waits = [pair[index] * 1e3 for pair in pairs]
            p50, p99 = statistics.median(waits), percentile(waits, 99)
            board.add(place, {FIRST: p50, FIRST_P99: p99})
        added = statistics.median(through - alone for alone, through in pairs)
        board.add(THROUGH_REDIS, {ADDED: added * 1e3})

    def judge(self, board: Board) -> None:
        rows = (RATE, THROUGH_REDIS), (RATE, IN_PROCESS)
        what = f"{RATE}: {THROUGH_REDIS} to {IN_PROCESS}"
        board.check_ratio(what, *rows, at_least(self.min_ratio))
        board.check_figure((ADDED, THROUGH_REDIS), at_most(_MAX_ADDED_MS))


async def through_redis(
    client: AsyncClient, work: Workload, sampling: Mapping[str, float] | None = None
) -> float:
    """Tokens per second, from the submit to the last token at the last subscriber."""
    requests = [
        Request(prompt, sampling={"max_new_tokens": count, "ignore_eos": True, **(sampling or {})})
        for prompt, count in zip(work.prompts, work.new_tokens, strict=True)
    ]
    began = time.perf_counter()
    jobs = await client.submit_many(requests)
    counts = await asyncio.gather(*(_count_tokens(job) for job in jobs))
    seconds = time.perf_counter() - began
    if counts != work.new_tokens:
        raise RuntimeError(f"{sum(counts)} tokens came, {work.tokens} were asked for")
    return work.tokens / seconds


async def first_token(client: AsyncClient, prompt: Sequence[int]) -> float:
    """Seconds from the submit to the first token at its subscriber."""
    began = time.perf_counter()
    job = await client.submit(list(prompt), max_new_tokens=1, ignore_eos=True)
    seconds = 0.0
    async for event in job.stream(timeout_s=_TIMEOUT_S):
        if isinstance(event, TokenEvent) and not seconds:
            seconds = time.perf_counter() - began
    return seconds


async def _count_tokens(job: AsyncJob) -> int:
    count = 0
    async for event in job.stream(timeout_s=_TIMEOUT_S):
        if isinstance(event, TokenEvent):
            count += len(event.token_ids)
    return count


@contextmanager
def serving(
    model: Path, dtype: str, max_batch_size: int, max_step_tokens: int, **settings: Any
) -> Iterator[str]:
    """The URL of a Redis of its own, and a worker that serves `model` from it; `settings`: more of
    the worker's."""
    with (
        EmbeddedBroker() as broker,
        WorkerProcess(
            "bench",
            broker.url,
            model=str(model),
            dtype=dtype,
            tokenizer=str(MODEL_PATH),
            max_batch_size=max_batch_size,
            max_step_tokens=max_step_tokens,
            **settings,
        ) as worker,
    ):
        worker.wait_ready()
        yield broker.url
