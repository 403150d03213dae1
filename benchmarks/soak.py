"""Full load for a long time: does memory stay flat?

One worker whose slots are always full, a queue that always has more, and streaming subscribers.
Results live for a short time, so that after the warm-up as much expires as is written.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import redis

from benchmarks.usage import resident_bytes
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, FinishedEvent, Request, TokenEvent

_OPENINGS = ("Once upon a time", "The weather today", "Dear friend,", "Ein Stück Käse für 5 €: 🧀")
_SUBSCRIBERS = 64
_SAMPLE_S = 10.0
_TTL_S = 30

#: Seconds since the start, jobs, tokens, keys, and sizes in MiB.
Sample = dict[str, float]


async def subscriber(client: AsyncClient, counts: Counter[str], until: float) -> None:
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
                    counts["tokens"] += len(event.token_ids)
                case FinishedEvent() if event.index == wanted:
                    counts["jobs"] += 1
                case _:
                    raise SystemExit(f"job {job.id} of {wanted} tokens ended with {event}")


async def soak(engine: str, minutes: float) -> list[Sample]:
    samples: list[Sample] = []
    settings: dict[str, Any] = {"torch_threads": 1, "result_ttl_s": _TTL_S, "log_level": "warning"}
    with (
        EmbeddedBroker(fake=False) as broker,
        WorkerProcess("soak", broker.url, engine=engine, **settings) as worker,
        redis.Redis.from_url(broker.url, protocol=2) as raw,
    ):
        worker.wait_ready()
        redis_pid = int(raw.info("server")["process_id"])
        start = time.monotonic()
        counts, until = Counter[str](jobs=0, tokens=0), start + minutes * 60
        async with AsyncClient(redis_url=broker.url, result_ttl_s=_TTL_S) as client:
            load = [
                asyncio.create_task(subscriber(client, counts, until)) for _ in range(_SUBSCRIBERS)
            ]
            while time.monotonic() < until:
                await asyncio.sleep(min(_SAMPLE_S, max(0.0, until - time.monotonic())))
                sample = {
                    "after_s": time.monotonic() - start,
                    **counts,
                    "worker_rss": resident_bytes(worker.pid or 0) / 2**20,
                    "redis_rss": resident_bytes(redis_pid) / 2**20,
                    "redis_used": raw.info("memory")["used_memory"] / 2**20,
                    "keys": raw.dbsize(),
                }
                samples.append({name: round(value, 1) for name, value in sample.items()})
                shown = ", ".join(f"{name} {value:,}" for name, value in samples[-1].items())
                print(shown, file=sys.stderr)
            await asyncio.gather(*load)
    return samples


def growth(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    """Medians of the second and of the last quarter: flat means that they are the same."""
    quarter = max(1, len(samples) // 4)
    values = [sample[name] for sample in samples]
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
        print(json.dumps(samples))
        return
    last = samples[-1]
    print(f"{last['jobs']} jobs, {last['tokens']} tokens in {args.minutes:g} minutes")
    for name in ("worker_rss", "redis_rss", "redis_used", "keys"):
        early, late = growth(samples, name)
        print(f"{name:11} second quarter {early:9.1f}, last quarter {late:9.1f}")


if __name__ == "__main__":
    main()
