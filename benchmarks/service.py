"""What the queue costs: the same work by the engine in process and through Redis, in one run.

    python -m benchmarks.service [--rounds N] [--model built-in|llama-135m]
        [--dtype float32|bfloat16] [--json]

The two take turns, so that a machine whose speed drifts slows both; the ratio is taken round by
round. Through Redis means everything: producer, redis-server, worker, and a streaming subscriber
for every request, all on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.models import save_llama_135m
from benchmarks.tables import spread
from demo.broker import EmbeddedBroker
from demo.workers import WorkerProcess
from producer import AsyncClient, AsyncJob, Request, TokenEvent
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams
from roseinfer.demo_model import MODEL_PATH

_BATCH = 32
_STEP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Workload:
    prompts: list[list[int]]
    new_tokens: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.new_tokens)

    @classmethod
    def draw(cls, requests: int, vocabulary: int, seed: int) -> Workload:
        """Prompts of 32 to 256 tokens, answers of 16 to 128. Another seed for each round, or the
        prefix cache would spare the later ones their prefill."""
        source = random.Random(seed)  # noqa: S311 - a workload, no secret
        return cls(
            [
                [source.randrange(vocabulary) for _ in range(source.randint(32, 256))]
                for _ in range(requests)
            ],
            [source.randint(16, 128) for _ in range(requests)],
        )


@dataclass(frozen=True, slots=True)
class Round:
    """Generated tokens per second."""

    in_process: float
    through_redis: float

    @property
    def ratio(self) -> float:
        return self.through_redis / self.in_process


def run_in_process(engine: InferenceEngine, work: Workload) -> float:
    scheduler = OnlineScheduler(engine, _BATCH, _STEP_TOKENS, keep_finished=False)
    began = time.perf_counter()
    for prompt, count in zip(work.prompts, work.new_tokens, strict=True):
        params = SamplingParams(max_new_tokens=count, ignore_eos=True)
        scheduler.add_request(prompt, params=params)
    tokens = 0
    while scheduler.has_unfinished():
        tokens += sum(len(output.token_ids) for output in scheduler.step())
    return _rate(tokens, work, began)


async def run_through_redis(client: AsyncClient, work: Workload) -> float:
    requests = [
        Request(prompt, sampling={"max_new_tokens": count, "ignore_eos": True})
        for prompt, count in zip(work.prompts, work.new_tokens, strict=True)
    ]
    began = time.perf_counter()
    jobs = await client.submit_many(requests)
    counts = await asyncio.gather(*(_count_tokens(job) for job in jobs))
    return _rate(sum(counts), work, began)


async def _count_tokens(job: AsyncJob) -> int:
    count = 0
    async for event in job.stream(timeout_s=600):
        if isinstance(event, TokenEvent):
            count += len(event.token_ids)
    return count


def _rate(tokens: int, work: Workload, began: float) -> float:
    seconds = time.perf_counter() - began
    if tokens != work.tokens:
        raise RuntimeError(f"{tokens} tokens came, {work.tokens} were asked for")
    return tokens / seconds


def measure(model: Path, dtype: str, requests: int, rounds: int, console: Console) -> list[Round]:
    engine = InferenceEngine(model, tokenizer_name=str(MODEL_PATH), dtype=dtype)
    with (
        EmbeddedBroker() as broker,
        WorkerProcess(
            "bench",
            broker.url,
            model=str(model),
            dtype=dtype,
            tokenizer=str(MODEL_PATH),
            max_batch_size=_BATCH,
            max_step_tokens=_STEP_TOKENS,
        ) as worker,
    ):
        worker.wait_ready()
        console.print(f"{broker.kind}; {torch.get_num_threads()} threads")

        async def take_turns() -> list[Round]:
            measured = []
            async with AsyncClient(redis_url=broker.url) as client:
                for number in range(rounds + 1):  # the first one warms up both
                    work = Workload.draw(requests, engine.vocab_size, seed=number)
                    alone = await asyncio.to_thread(run_in_process, engine, work)
                    this = Round(alone, await run_through_redis(client, work))
                    name = f"round {number}" if number else "warm-up"
                    console.print(
                        f"{name}: in process {this.in_process:.0f} tokens/s, "
                        f"through Redis {this.through_redis:.0f}, ratio {this.ratio:.3f}"
                    )
                    measured.append(this)
            return measured[1:]

        return asyncio.run(take_turns())


def show(name: str, rounds: Sequence[Round], console: Console) -> None:
    title = f"{name}: generated tokens per second, {len(rounds)} rounds"
    rows = [
        ("in process", [r.in_process for r in rounds], 0),
        ("through Redis", [r.through_redis for r in rounds], 0),
        ("ratio, round by round", [r.ratio for r in rounds], 3),
    ]
    console.print(spread(title, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--model", choices=["built-in", "llama-135m"], action="append")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--json", action="store_true", help="print the rounds as JSON")
    args = parser.parse_args()
    console = Console(stderr=args.json, highlight=False)
    console.print(
        f"torch {torch.__version__}, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}"
    )
    for name in args.model or ["built-in", "llama-135m"]:
        with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
            model = MODEL_PATH if name == "built-in" else save_llama_135m(Path(folder))
            rounds = measure(model, args.dtype, args.requests, args.rounds, console)
        if args.json:
            print(json.dumps({"model": name, "rounds": [asdict(r) for r in rounds]}))
        else:
            show(f"{name}, {args.dtype}", rounds, console)


if __name__ == "__main__":
    main()
