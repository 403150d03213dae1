"""The queue against a plain asyncio loop and other queues, in one run.

    python -m benchmarks.queue [--only submit,drain,...] [--rounds N] [--quick] [--no-million]
        [--peers-python PYTHON ...] [--bullmq FOLDER] [--json FILE]

The contenders take turns; ratios are taken round by round. Each measurement has a fresh
redis-server on this machine, the same for all, and one worker process. Other queues take part
where they are installed.
"""

import argparse
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.queue.cases.compared import Drain, Latency, Submit, Tokens
from benchmarks.queue.cases.idle import Idle
from benchmarks.queue.cases.paced import Paced
from benchmarks.queue.cases.sigkill import Sigkill
from benchmarks.queue.cases.subscribers import Subscribers
from benchmarks.queue.cases.waiting import Waiting
from benchmarks.queue.ours import Ours, OursSync, payload
from benchmarks.queue.peers import Peer, find_peers
from benchmarks.queue.plain import Plain
from benchmarks.report import environment
from benchmarks.runner import Case, Runner, exit_on_sigterm, options

_CASES = (
    "submit",
    "drain",
    "tokens",
    "latency",
    "paced",
    "idle",
    "waiting",
    "subscribers",
    "sigkill",
)
_SLOW = {"waiting", "subscribers", "sigkill"}
_WITH_PEERS = {"submit", "drain", "latency", "sigkill"}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int = 5
    slow_rounds: int = 3
    """of the cases that take long and scatter little"""
    submitted_jobs: int = 50_000
    drained_jobs: int = 20_000
    long_jobs: int = 64
    long_tokens: int = 2000
    round_trips: int = 500
    paced_tokens_per_s: int = 600
    paced_tokens: int = 200
    """of each stream"""
    idle_workers: tuple[int, int] = (1, 100)
    waiting: tuple[int, int] = (10_000, 1_000_000)
    subscribers: int = 2000
    streamed_tokens: int = 50
    killed_tokens: int = 100


_SCALES = {
    "full": Scale(),
    "quick": Scale(
        rounds=3,
        slow_rounds=1,
        submitted_jobs=20_000,
        drained_jobs=10_000,
        long_tokens=500,
        round_trips=200,
        paced_tokens=100,
        waiting=(10_000, 100_000),
        streamed_tokens=20,
    ),
    "tiny": Scale(
        rounds=1,
        slow_rounds=1,
        submitted_jobs=500,
        drained_jobs=500,
        long_jobs=8,
        long_tokens=50,
        round_trips=20,
        paced_tokens_per_s=3200,
        paced_tokens=50,
        idle_workers=(1, 3),
        waiting=(500, 1000),
        subscribers=20,
        streamed_tokens=10,
        killed_tokens=20,
    ),
}


def build(scale: Scale, batch: int, peers: list[Peer]) -> dict[str, Case]:
    plain, ours = Plain(payload()), Ours(batch)
    return {
        "submit": Submit(scale.submitted_jobs, [plain, ours, OursSync(batch), *peers]),
        "drain": Drain(scale.drained_jobs, [plain, ours, *peers]),
        "tokens": Tokens(scale.long_jobs, scale.long_tokens, plain, scale.submitted_jobs),
        "latency": Latency(scale.round_trips, [plain, ours, *peers]),
        "paced": Paced(scale.paced_tokens_per_s, scale.paced_tokens),
        "idle": Idle(scale.idle_workers, scale.round_trips, ours),
        "waiting": Waiting(scale.waiting, scale.drained_jobs, ours),
        "subscribers": Subscribers(scale.subscribers, scale.streamed_tokens),
        "sigkill": Sigkill(scale.killed_tokens, peers),
    }


def main() -> None:
    args = _arguments()
    scale = _scale(args)
    peers: list[Peer] = []
    if _WITH_PEERS & set(args.only):
        peers, missing = find_peers(args.peers_python or [sys.executable], args.bullmq)
        if missing:
            print(f"not installed, so not measured: {', '.join(missing)}", file=sys.stderr)
    versions = {name: v for peer in peers for name, v in peer.versions.items()}
    facts = environment("benchmarks.queue", ("redis", "hiredis"), versions)
    rounds = args.rounds or scale.rounds
    runner = Runner(facts, rounds, args.json, base=Plain.name, warm_up=False)
    cases = build(scale, args.batch, peers)
    for name in args.only:
        runner.measure(name, cases[name], scale.slow_rounds if name in _SLOW else None)


def _scale(args: argparse.Namespace) -> Scale:
    scale = _SCALES[args.scale]
    if args.no_million:
        few, many = scale.waiting
        return replace(scale, waiting=(few, min(many, 100_000)))
    return scale


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.queue", __doc__, _CASES)
    add = parser.add_argument
    add("--scale", choices=_SCALES, default="full", help="tiny proves that it runs, no more")
    add("--quick", action="store_const", dest="scale", const="quick", help="as --scale quick")
    add("--no-million", action="store_true", help="100,000 waiting jobs instead: 1 GB less")
    add("--batch", type=int, default=256, help="max_batch_size of the worker that drains")
    add("--peers-python", action="append", help="where other queues are installed; repeatable")
    add("--bullmq", type=Path, help="folder whose node_modules holds bullmq and ioredis")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    exit_on_sigterm()
    main()
