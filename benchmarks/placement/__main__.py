"""What is gained where a conversation's next turn goes to the worker that has the one before.

    python -m benchmarks.placement
        [--only conversations,agents,bursts,unlike,hot,urgent,restart,simulated] [--rounds N]
        [--scale full|quick|tiny] [--json FILE]

Real workers of the built-in model, whose context is lengthened: its answers make no sense then,
and cost what they cost. Beside the product two routers that push, each worker having a queue of its
own: to the least loaded one, and to one chosen by the conversation. `urgent`: jobs of a high
priority beside a worker full of low ones. `restart`: a worker is killed, and another takes over
with and without a second tier of the cache. `simulated`: many workers that are simulated, and the
product's scripts.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.board import Board, at_least, at_most, percentile
from benchmarks.placement.conversations import Outcome, Trace, converse
from benchmarks.placement.models import ANNOUNCED_S, long_model
from benchmarks.placement.restart import Restart
from benchmarks.placement.simulation import simulated
from benchmarks.placement.urgent import Urgent
from benchmarks.queue.stage import fresh_redis
from benchmarks.report import environment
from benchmarks.runner import Case, Runner, exit_on_sigterm, in_turn, options
from rose_cli.local.services import WorkerProcess

HIT_RATE = "share of prompt tokens from a cache, after the first turn"
FIRST_P50 = "time to first token after the first turn, p50 ms"
FIRST_P99 = "time to first token after the first turn, p99 ms"
TOKENS = "tokens/s"

_PLACEMENT_S = 2.0


@dataclass(frozen=True, slots=True)
class Contender:
    workers: int
    how: str = ""
    """placed; or routed: least, hashed"""

    @property
    def name(self) -> str:
        name = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{name}, {self.how}" if self.how else name

    @property
    def queues(self) -> list[str]:
        if self.how in ("least", "hashed"):
            return [f"worker-{number}" for number in range(self.workers)]
        return [""]


@dataclass(frozen=True, slots=True)
class Turns(Case):
    title: str
    trace: Trace
    contenders: Sequence[Contender]
    hits: bool = True
    """Whether there is anything to find in a cache."""

    def round(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            found = _measured(contender, self.trace, f"round {turn}")
            board.add(
                contender.name,
                {
                    HIT_RATE: found.hit_rate,
                    FIRST_P50: percentile(found.later_first_token_s, 50) * 1000,
                    FIRST_P99: percentile(found.later_first_token_s, 99) * 1000,
                    TOKENS: found.tokens / found.seconds,
                },
            )

    def judge(self, board: Board) -> None:
        alone = Contender(1).name
        for contender in self.contenders:
            if contender.how != "placed":
                continue
            name, unplaced = contender.name, replace(contender, how="").name
            if self.hits and contender.workers > 1:
                what = f"{name}: hit rate to that of one worker"
                board.check_ratio(what, (HIT_RATE, name), (HIT_RATE, alone), at_least(0.95))
            what = f"{name}: {FIRST_P50} to that without"
            board.check_ratio(what, (FIRST_P50, name), (FIRST_P50, unplaced), at_most(1.1))


def _measured(contender: Contender, trace: Trace, salt: str) -> Outcome:
    placed = contender.how == "placed"
    settings: dict[str, Any] = {"placement_s": _PLACEMENT_S} if placed else {}
    queues = contender.queues
    with ExitStack() as stack:
        broker = stack.enter_context(fresh_redis())
        model = long_model(stack.enter_context(tempfile.TemporaryDirectory(prefix="rose-model-")))
        workers = [
            stack.enter_context(
                WorkerProcess(
                    f"worker-{number}",
                    broker.url,
                    model=str(model),
                    kv_cache_tokens=200000,
                    log_level="warning",
                    **settings,
                    **_queue(queues[number % len(queues)]),
                )
            )
            for number in range(contender.workers)
        ]
        for worker in workers:
            worker.wait_ready()
        if placed:
            time.sleep(ANNOUNCED_S)
        client = {"redis_url": broker.url, "result_ttl_s": 600}
        return asyncio.run(converse(client, trace, salt, queues=queues, how=contender.how))


def _queue(name: str) -> dict[str, Any]:
    return {"queue": name} if name else {}


@dataclass(frozen=True, slots=True)
class Simulated(Case):
    """Targets are those of the product with placement, to the product without and to a router that
    hashes conversations."""

    workers: int
    jobs: int
    load: float = 0.8
    slowness: float = 1.0

    @property
    def title(self) -> str:  # type: ignore[override]
        slow = f", one of them {self.slowness:g} times slower" if self.slowness > 1 else ""
        return f"{self.workers} simulated workers, load {self.load:g}{slow}"

    def round(self, board: Board, turn: int) -> None:  # noqa: ARG002 - figures do not scatter
        for how in ("unplaced", "placed", "least", "hashed"):
            seen, redis_us = simulated(self.workers, self.jobs, how, self.load, self.slowness)
            waits = seen.first_token_s
            figures = {
                HIT_RATE: seen.cached / max(1, seen.prompt),
                "time to first token, mean ms": sum(waits) / len(waits) * 1000,
                "time to first token, p50 ms": percentile(waits, 50) * 1000,
                "time to first token, p99 ms": percentile(waits, 99) * 1000,
            }
            by_product = how in ("unplaced", "placed")
            board.add(how, figures | ({"Redis, us a job": redis_us} if by_product else {}))

    def judge(self, board: Board) -> None:
        mean = "time to first token, mean ms"
        what = "hit rate: placed to hashed"
        board.check_ratio(what, (HIT_RATE, "placed"), (HIT_RATE, "hashed"), at_least(0.95))
        what = f"{mean}: placed to unplaced"
        board.check_ratio(what, (mean, "placed"), (mean, "unplaced"), at_most(0.5))


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int
    workers: tuple[int, ...]
    conversations: Trace
    agents: Trace
    urgent: Urgent
    restart: Restart
    simulated: tuple[tuple[int, int], ...]
    """workers and jobs"""


_SCALES = {
    "full": Scale(
        3,
        (1, 2, 3),
        Trace(60, 8, 890, 60, 16),
        Trace(8, 30, 890, 60, 16),
        Urgent(slots=8, lows=48, tokens=700, every_s=0.2),
        Restart(32, 1440),
        ((8, 4000), (64, 12_000), (512, 60_000)),
    ),
    "quick": Scale(
        1,
        (1, 2, 3),
        Trace(24, 6, 890, 60, 16),
        Trace(4, 30, 890, 30, 8),
        Urgent(slots=8, lows=24, tokens=600, every_s=0.2),
        Restart(32, 1440),
        ((8, 4000), (64, 12_000)),
    ),
    "tiny": Scale(
        1,
        (2,),
        Trace(3, 2, 50, 20, 2),
        Trace(2, 3, 50, 20, 2),
        Urgent(slots=2, lows=3, tokens=40, every_s=0.05),
        Restart(3, 60),
        ((2, 100),),
    ),
}


def build(scale: Scale) -> dict[str, Case]:
    contenders = [Contender(workers, how) for workers in scale.workers for how in ("", "placed")]
    routed = [Contender(max(scale.workers), how) for how in ("least", "hashed")]
    several = [one for one in contenders if one.workers == max(scale.workers)]
    trace, agents = scale.conversations, scale.agents
    return {
        "conversations": Turns(
            f"{trace.conversations} conversations of {trace.turns} turns at once",
            trace,
            [*contenders, *routed],
        ),
        "bursts": Turns(
            f"{trace.conversations} conversations of {trace.turns} turns in bursts",
            replace(trace, bursts=True),
            [*several, *routed],
        ),
        "agents": Turns(
            f"{agents.conversations} agents of {agents.turns} turns at once", agents, several
        ),
        "unlike": Turns(
            "Prompts that have nothing in common", replace(trace, alike=False), several, hits=False
        ),
        "hot": Turns("One conversation alone", replace(trace, conversations=1), several),
        "urgent": scale.urgent,
        "restart": scale.restart,
    }


def simulations(scale: Scale) -> list[Simulated]:
    (few, jobs), *_ = scale.simulated
    return [
        *(Simulated(workers, jobs) for workers, jobs in scale.simulated),
        Simulated(few, jobs, load=1.2),
        Simulated(few, jobs, slowness=4.0),
    ]


_CASES = ("conversations", "agents", "bursts", "unlike", "hot", "urgent", "restart", "simulated")


def main() -> None:
    args = _arguments()
    scale = _SCALES[args.scale]
    facts = environment("benchmarks.placement", ("redis", "hiredis", "torch"), {})
    runner = Runner(facts, args.rounds or scale.rounds, args.json, warm_up=False)
    cases = build(scale)
    for name in args.only:
        if name != "simulated":
            runner.measure(name, cases[name])
            continue
        for number, case in enumerate(simulations(scale)):
            runner.measure(f"{name}-{number}", case, 1)


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.placement", __doc__, _CASES)
    parser.add_argument("--scale", choices=_SCALES, default="full")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    exit_on_sigterm()
    main()
