"""Chaos for a batch: `python -m tests.chaos.batch [--lines N] [--seed S]`.

Two gateways, three workers, one Redis. SIGKILL strikes whoever runs the batch, as soon as it is
another one than before, and workers. Exit status 0 only if every rule held.
"""

from __future__ import annotations

import argparse
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
from tests.chaos.batch.check import Look, Rule
from tests.chaos.batch.run import BatchOptions, BatchRun, Outcome
from tests.chaos.findings import show

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class _Ticker:
    """A line every two seconds."""

    def __init__(self) -> None:
        self._began = self._next = time.monotonic()

    def __call__(self, look: Look) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 2.0
            err.print(
                f"{now - self._began:4.0f} s  {look.status}, {look.completed} completed and "
                f"{look.failed} failed of {look.total}, {look.stored_before} stored"
            )


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = _arguments()
    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    options = BatchOptions(
        seed=seed,
        lines=args.lines,
        runner_kills=args.runner_kills,
        worker_kills=args.worker_kills,
    )
    err.print(f"seed {seed}: {args.lines} lines")
    folder = Path(tempfile.mkdtemp(prefix="rose-batch-"))
    try:
        outcome = BatchRun(options, folder, _Ticker()).run()
    except RoseError as error:
        err.print(f"chaos: {error}")
        sys.exit(2)
    finally:
        shutil.rmtree(folder)
    result = as_json(options, outcome)
    if args.json:
        out.print_json(data=result, indent=None)
    else:
        for name, value in result.items():
            out.print(f"{name}: {value}", markup=False)
    show(err, Rule, outcome.findings)
    sys.exit(1 if outcome.findings else 0)


def as_json(options: BatchOptions, outcome: Outcome) -> dict[str, Any]:
    rules = Counter(finding.rule for finding in outcome.findings)
    return {
        "ok": not outcome.findings,
        "seed": options.seed,
        "lines": options.lines,
        "output": outcome.output_lines,
        "errors": outcome.error_lines,
        "runner kills": outcome.runner_kills,
        "worker kills": outcome.worker_kills,
        "epochs": outcome.epoch,
        "looks": len(outcome.looks),
        "rules": {rule.name.lower(): rules[rule] for rule in Rule},
        "wall_s": round(outcome.wall_s, 1),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.batch", description="Kill whoever runs a batch."
    )
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--runner-kills", type=int, default=20)
    parser.add_argument("--worker-kills", type=int, default=20)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
