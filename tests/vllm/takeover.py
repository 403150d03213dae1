"""Jobs with half of the sampling parameters each, whose worker is killed midway.

    python -m tests.vllm.takeover [--jobs N] [--seed S] [--chain ENGINE,ENGINE]...

Each chain is a queue, the same jobs, and one worker after another: while the jobs of one are in
their middle it is killed, and the next engine goes on. Every text must be the one of roseinfer's
own engine without a queue. A chain of one engine is undisturbed. Exit status 0 if all texts are.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rose.protocol import JobSpec
from rose.sampling import SamplingParams
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, Job, Request
from rose_worker.settings import WorkerSettings
from tests.chaos.engines import settings_of
from tests.support.bench import wait_until
from tests.support.engines import (
    SCHEMA,
    Answer,
    answers,
    differences,
    set_variables,
)
from tests.support.nursery import forking

CHAINS = ("rose", "vllm", "rose,rose", "vllm,vllm", "rose,vllm", "vllm,rose", "vllm,rose,vllm")
_SLOTS = 32
_TOKENS = (35, 90)
#: Of a worker that will be killed: else the own engine is done before anybody has looked.
_STEP_S = 0.05
_DONE_S = 1800.0
_ANIMALS = ("fox", "bear", "mouse", "train", "king")

#: A job has half of these, and is greedy or seeded.
_PARAMETERS: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.2, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    {"stop": ["and", "the"]},
    {"logprobs": True, "top_logprobs": 3},
    {"min_new_tokens": 30},
    {"logit_bias": ((5, 3.0), (300, -50.0))},
)
#: And perhaps one of these: they exclude each other.
_FORMS: tuple[dict[str, Any], ...] = (
    {"json_schema": SCHEMA},
    {"regex": "[A-Z][a-z]{5,30}( [0-9]{3}){8}"},
    {"grammar": 'start: ("ha" | "ho" | " "){40}'},
)


@dataclass(frozen=True, slots=True)
class Outcome:
    chain: str
    differences: list[str]
    """of the answers to those of an undisturbed engine"""
    moved: int
    """jobs that a second worker went on with, in their middle"""
    seconds: float

    @property
    def stayed(self) -> bool:
        """Nothing was shown: no job has moved, though a worker was killed."""
        return "," in self.chain and not self.moved


def drawn_jobs(count: int, seed: int) -> list[JobSpec]:
    return [_drawn(number, random.Random(f"{seed}:{number}")) for number in range(count)]


def _drawn(number: int, draw: random.Random) -> JobSpec:
    chosen = draw.sample([*_PARAMETERS, draw.choice(_FORMS)], 3)
    if number % 2:
        chosen.append({"temperature": 0.9, "seed": draw.randrange(2**31)})
    sampling = {key: value for one in chosen for key, value in one.items()}
    prompt = f"{number}. Once upon a time there was a little {draw.choice(_ANIMALS)}"
    params = SamplingParams(max_new_tokens=draw.randint(*_TOKENS), **sampling)
    return JobSpec(id=f"job-{number}", prompt=prompt, sampling=params)


def undisturbed(jobs: Sequence[JobSpec]) -> dict[str, Answer]:
    """What roseinfer's own engine answers, without a queue."""
    from rose_worker.rose_engine import RoseEngine

    settings = WorkerSettings(device="cpu", max_batch_size=_SLOTS)
    return answers(RoseEngine(settings), jobs)


def run_chain(
    chain: str, jobs: Sequence[JobSpec], wanted: Mapping[str, Answer], redis_url: str
) -> Outcome:
    """One worker after another. Each but the last is killed as soon as its share of the jobs has
    ended, while others are in their middle."""
    began = time.monotonic()
    engines = chain.split(",")
    queue = f"takeover-{chain.replace(',', '-')}"
    place = {"queue": queue, "max_batch_size": _SLOTS, "lease_s": 2, "reclaim_interval_s": 0.2}
    with Client(redis_url=redis_url, queue=queue) as client:
        submitted = _submit(client, jobs)
        for life, engine in enumerate(engines, 1):
            dies = life < len(engines)
            pace = {"min_step_s": _STEP_S if dies else 0.0}
            settings = place | pace | settings_of(engine)
            with WorkerProcess(f"{life}-{engine}", redis_url, **settings) as worker:
                worker.wait_ready()
                if dies:
                    share = len(jobs) * life // len(engines)
                    wait_until(partial(_is_midway, submitted, share), _DONE_S)
                    worker.kill()
                else:
                    said = {job.id: job.result(_DONE_S) for job in submitted}
        moved = sum(len({one.worker for one in job.status().writers}) > 1 for job in submitted)
    found = [line for job in submitted for line in differences(said[job.id], wanted[job.id])]
    return Outcome(chain, found, moved, time.monotonic() - began)


def _submit(client: Client, jobs: Sequence[JobSpec]) -> list[Job]:
    return client.submit_many(
        [
            Request(job.prompt, job_id=job.id, sampling=job.sampling.model_dump(exclude_unset=True))
            for job in jobs
        ]
    )


def _is_midway(jobs: Sequence[Job], share: int) -> bool:
    """So many have ended, and another one is in its middle; or there is no other any more."""
    statuses = [job.status() for job in jobs]
    ended = sum(status.status == "finished" for status in statuses)
    running = any(status.status == "running" and status.tokens >= 5 for status in statuses)
    return ended == len(jobs) or (ended >= share and running)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.takeover")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chain", action="append", help="engines, with commas between them")
    args = parser.parse_args()
    set_variables()
    jobs = drawn_jobs(args.jobs, args.seed)
    wanted = undisturbed(jobs)
    bad = 0
    with forking(), EmbeddedBroker(fake=False) as broker:
        for chain in args.chain or CHAINS:
            outcome = run_chain(chain, jobs, wanted, broker.url)
            print(
                f"{outcome.chain}: {len(jobs)} jobs, {outcome.moved} went on in another worker, "
                f"{len(outcome.differences)} differences, {outcome.seconds:.0f} s",
                *outcome.differences,
                sep="\n  ",
                flush=True,
            )
            bad += len(outcome.differences) + outcome.stayed
    print(json.dumps({"jobs": len(jobs), "seed": args.seed, "bad": bad}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
