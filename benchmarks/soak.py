"""Full load for a long time: does memory stay flat?

One worker whose slots are always full, a queue that always has more, and streaming subscribers.
Results live for a short time, so that after the warm-up as much expires as is written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import redis

from rose_cli.demo.broker import EmbeddedBroker
from rose_cli.demo.workers import WorkerProcess
from rose_producer import AsyncClient, FinishedEvent, Request, TokenEvent

_OPENINGS = ("Once upon a time", "The weather today", "Dear friend,", "Ein Stück Käse für 5 €: 🧀")
_SUBSCRIBERS = 64
_SAMPLE_S = 10.0
_TTL_S = 30


@dataclass(frozen=True, slots=True)
class Sample:
    """Sizes in MiB."""

    after_s: float
    jobs: int
    tokens: int
    worker_rss: float
    redis_rss: float
    redis_used: float
    keys: int


class Counts:
    jobs = 0
    tokens = 0


async def subscriber(client: AsyncClient, counts: Counts, until: float) -> None:
    """One job after another: submit, stream to the end, check that nothing is missing."""
    dice = random.Random()  # noqa: S311 - which prompt, no secret
    while time.monotonic() < until:
        wanted = dice.randint(1, 200)
        sampling = {"max_new_tokens": wanted, "ignore_eos": True, "temperature": 0.8}
        request = Request(dice.choice(_OPENINGS), sampling=sampling)
        (job,) = await client.submit_many([request])
        async for event in job.stream():
            match event:
                case TokenEvent():
                    counts.tokens += len(event.token_ids)
                case FinishedEvent() if event.index == wanted:
                    counts.jobs += 1
                case _:
                    raise SystemExit(f"job {job.id} of {wanted} tokens ended with {event}")


def rss_mib(pid: int) -> float:
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True)
    return int(shown.stdout) / 1024


async def soak(engine: str, minutes: float) -> list[Sample]:
    samples: list[Sample] = []
    with (
        EmbeddedBroker(fake=False) as broker,
        WorkerProcess(
            "soak",
            broker.url,
            engine=engine,
            torch_threads=1,
            result_ttl_s=_TTL_S,
            log_level="warning",
        ) as worker,
        redis.Redis.from_url(broker.url, protocol=2) as raw,
    ):
        worker.wait_ready()
        pids = worker.pid, int(raw.info("server")["process_id"])
        start = time.monotonic()
        counts, until = Counts(), start + minutes * 60
        async with AsyncClient(redis_url=broker.url, result_ttl_s=_TTL_S) as client:
            load = [
                asyncio.create_task(subscriber(client, counts, until)) for _ in range(_SUBSCRIBERS)
            ]
            while time.monotonic() < until:
                await asyncio.sleep(min(_SAMPLE_S, max(0.0, until - time.monotonic())))
                samples.append(_sample(raw, pids, counts, time.monotonic() - start))
                _report(samples[-1])
            await asyncio.gather(*load)
    return samples


def _sample(
    raw: redis.Redis, pids: tuple[int | None, int], counts: Counts, after_s: float
) -> Sample:
    worker_pid, redis_pid = pids
    return Sample(
        after_s=round(after_s, 1),
        jobs=counts.jobs,
        tokens=counts.tokens,
        worker_rss=round(rss_mib(worker_pid or 0), 1),
        redis_rss=round(rss_mib(redis_pid), 1),
        redis_used=round(raw.info("memory")["used_memory"] / 2**20, 1),
        keys=int(raw.dbsize()),
    )


def _report(sample: Sample) -> None:
    print(
        f"{sample.after_s:6.0f} s  {sample.jobs:9} jobs  {sample.tokens:11} tokens  "
        f"worker {sample.worker_rss:7.1f}  redis {sample.redis_rss:6.1f} "
        f"(used {sample.redis_used:6.1f}) MiB  {sample.keys:7} keys",
        file=sys.stderr,
    )


def growth(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    """Medians of the second and of the last quarter: flat means that they are the same."""
    quarter = max(1, len(samples) // 4)
    values = [float(getattr(sample, name)) for sample in samples]
    return (
        statistics.median(values[quarter : 2 * quarter] or values),
        statistics.median(values[-quarter:]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--engine", choices=["rose", "null"], default="rose")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    samples = asyncio.run(soak(args.engine, args.minutes))
    if args.json:
        print(json.dumps([asdict(sample) for sample in samples]))
        return
    print(f"{samples[-1].jobs} jobs, {samples[-1].tokens} tokens in {args.minutes:g} minutes")
    for name in ("worker_rss", "redis_rss", "redis_used", "keys"):
        early, late = growth(samples, name)
        print(f"{name:11} second quarter {early:9.1f}, last quarter {late:9.1f}")


if __name__ == "__main__":
    main()
