"""The queue against a plain asyncio loop and other queues, in one run.

    python -m benchmarks.queue [--only submit,drain,...] [--rounds N] [--quick] [--no-million]
        [--peers-python PYTHON ...] [--bullmq FOLDER] [--json] [--write PAGE]

The contenders take turns, so that a machine whose speed drifts slows all of them; ratios are taken
round by round. Everything on this machine: a fresh redis-server for each measurement, the same for
all, and one worker process. Other queues take part where they are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.board import Board
from benchmarks.options import some_of
from benchmarks.queue.cases import Case
from benchmarks.queue.cases.drain import Drain
from benchmarks.queue.cases.latency import Latency
from benchmarks.queue.cases.sigkill import Sigkill
from benchmarks.queue.cases.submit import Submit
from benchmarks.queue.cases.subscribers import Subscribers
from benchmarks.queue.cases.tokens import Tokens
from benchmarks.queue.cases.waiting import Waiting
from benchmarks.queue.ours import Ours, OursSync, payload
from benchmarks.queue.peers import Peer, find_peers
from benchmarks.queue.plain import Plain
from benchmarks.queue.scale import FULL, QUICK, TINY, Scale
from benchmarks.report import as_json, as_page, environment, show

_CASES = ("submit", "drain", "tokens", "latency", "waiting", "subscribers", "sigkill")
_WITH_PEERS = {"submit", "drain", "latency", "sigkill"}
_WIDTH = 120
_SCALES = {"full": FULL, "quick": QUICK, "tiny": TINY}


def build(scale: Scale, batch: int, peers: list[Peer]) -> dict[str, Case]:
    plain, ours, slow = Plain(payload()), Ours(batch), scale.slow_rounds
    return {
        "submit": Submit(scale.submitted_jobs, [plain, ours, OursSync(), *peers]),
        "drain": Drain(scale.drained_jobs, [plain, ours, *peers]),
        "tokens": Tokens(scale.long_jobs, scale.long_tokens, plain, scale.submitted_jobs),
        "latency": Latency(scale.round_trips, [plain, ours, *peers]),
        "waiting": Waiting(scale.waiting, scale.drained_jobs, ours, slow),
        "subscribers": Subscribers(scale.subscribers, scale.streamed_tokens, slow),
        "sigkill": Sigkill(scale.killed_tokens, slow, peers),
    }


async def measure(case: Case, rounds: int, progress: Console) -> Board:
    board = Board(case.title, base=Plain.name)
    for turn in range(case.rounds or rounds):
        began = time.perf_counter()
        await case.round(board, turn)
        last = {f"{name}, {metric}": values[-1] for (metric, name), values in board.rows.items()}
        said = "; ".join(f"{what} {value:.4g}" for what, value in last.items())
        took = time.perf_counter() - began
        progress.print(f"{case.title}, round {turn + 1}, {took:.0f} s: {said}")
    case.judge(board)
    return board


def main() -> None:
    args = _arguments()
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    peers: list[Peer] = []
    if _WITH_PEERS & set(args.only):
        peers, missing = find_peers(args.peers_python or [sys.executable], args.bullmq)
        if missing:
            progress.print(f"not installed, so not measured: {', '.join(missing)}")
    versions = {name: v for peer in peers for name, v in peer.versions.items()}
    facts = environment("benchmarks.queue", ("redis", "hiredis"), versions)
    progress.print(", ".join(f"{name} {value}" for name, value in facts.items()))
    cases = build(_scale(args), args.batch, peers)
    rounds = args.rounds or _scale(args).rounds
    out = Console(highlight=False, soft_wrap=True, width=_WIDTH)
    boards = {}
    for name in args.only:
        board = boards[name] = asyncio.run(measure(cases[name], rounds, progress))
        if not args.json:
            show(board, out)
    if args.json:
        print(json.dumps(as_json(facts, boards)))
    if args.write:
        args.write.write_text(as_page(facts, boards))


def _scale(args: argparse.Namespace) -> Scale:
    scale = _SCALES[args.scale]
    if args.no_million:
        few, many = scale.waiting
        return replace(scale, waiting=(few, min(many, QUICK.waiting[1])))
    return scale


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.queue", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--only", type=some_of(_CASES), default=list(_CASES), help=f"some of {','.join(_CASES)}")
    add("--rounds", type=int, help="of the cases that do not take long")
    add("--scale", choices=_SCALES, default="full", help="tiny proves that it runs, no more")
    add("--quick", action="store_const", dest="scale", const="quick", help="as --scale quick")
    add("--no-million", action="store_true", help="100,000 waiting jobs instead: 1 GB less")
    add("--batch", type=int, default=256, help="max_batch_size of the worker that drains")
    add("--peers-python", action="append", help="where other queues are installed; repeatable")
    add("--bullmq", type=Path, help="folder whose node_modules holds bullmq and ioredis")
    add("--json", action="store_true", help="print every round as JSON")
    add("--write", type=Path, help="also write a page of markdown")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
