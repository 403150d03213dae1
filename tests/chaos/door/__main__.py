"""Chaos through the door: `python -m tests.chaos.door [--responses N] [--chats N] [--seed S]`.

Two gateways behind one address, three workers, one Redis. Clients create background responses and
chat streams, and come back by the documented means alone: an Idempotency-Key until they know their
job, then `starting_after` or `Last-Event-ID`. Exit status 0 only if every rule held.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from rose.errors import RoseError
from tests.chaos.door.check import Rule
from tests.chaos.door.run import DoorOptions, DoorRun, Outcome
from tests.chaos.findings import show

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class _Ticker:
    """A line for each fault, and one every two seconds."""

    def __init__(self) -> None:
        self._began = self._next = time.monotonic()
        self._faults = 0

    def __call__(self, run: DoorRun) -> None:
        now = time.monotonic()
        for _, what in run.injector.log[self._faults :]:
            err.print(f"{now - self._began:4.0f} s  {what}", markup=False)
        self._faults = len(run.injector.log)
        if now >= self._next:
            self._next = now + 2.0
            progress = run.progress
            err.print(
                f"{now - self._began:4.0f} s  {progress.jobs_ended} of {len(run.outcome.told)} "
                f"ended, {progress.events.total()} events, {len(run.injector.log)} faults"
            )


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = _arguments()
    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    options = DoorOptions(
        seed=seed, responses=args.responses, chats=args.chats, replays=args.replays
    )
    err.print(f"seed {seed}: {args.responses} responses, {args.chats} chats")
    folder = Path(tempfile.mkdtemp(prefix="rose-door-"))
    try:
        outcome = asyncio.run(DoorRun(options, folder, _Ticker()).run())
    except (RoseError, TimeoutError) as error:
        err.print(f"chaos: {error}")
        sys.exit(2)
    result = as_json(options, outcome)
    if args.json:
        out.print_json(data=result, indent=None)
    else:
        for name, value in result.items():
            out.print(f"{name}: {value}", markup=False)
    if outcome.findings:
        show(err, Rule, outcome.findings)
        err.print(f"\nlogs are kept in {folder}", markup=False)
        sys.exit(1)
    if args.keep:
        err.print(f"logs are kept in {folder}", markup=False)
    else:
        shutil.rmtree(folder)


def as_json(options: DoorOptions, outcome: Outcome) -> dict[str, Any]:
    told = outcome.told
    rules = Counter(finding.rule for finding in outcome.findings)
    return {
        "ok": not outcome.findings,
        "seed": options.seed,
        "responses": sum(one.ask.face == "response" for one in told),
        "chats": sum(one.ask.face == "chat" for one in told),
        "events": sum(len(one.frames) for one in told),
        "resumed": sum(one.resumed for one in told),
        "created again": sum(one.created - 1 for one in told),
        "came again because of": dict(sum((one.refused for one in told), Counter())),
        "replays": outcome.replays,
        "rules": {rule.name.lower(): rules[rule] for rule in Rule},
        "faults": {kind.value: count for kind, count in outcome.faults.items()},
        "client connections cut": dict(outcome.cut),
        "wall_s": round(outcome.wall_s, 1),
        "server": outcome.redis.version,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.door",
        description="Is anything lost, doubled or reordered through HTTP, whatever dies?",
    )
    parser.add_argument("--responses", type=int, default=2000)
    parser.add_argument("--chats", type=int, default=500)
    parser.add_argument("--replays", type=int, default=100, help="streams asked for again")
    parser.add_argument("--seed", type=int, help="of asks and faults; default random")
    parser.add_argument("--keep", action="store_true", help="the logs of a good run, too")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
