"""Chaos for a batch: `python -m tests.chaos.batch [--lines N] [--seed S]`.

Two gateways, three workers, one Redis. SIGKILL strikes whoever runs the batch, as soon as it is
another one than before, and workers. Exit status 0 only if every rule held.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from rose.errors import RoseError
from tests.chaos.batch.check import Rule, Snapshot
from tests.chaos.batch.run import BatchOptions, BatchRun, Outcome
from tests.chaos.command import Ticker, count_names, drawn_seed, err, tell_result
from tests.support.nursery import forking


def _progress(snapshot: Snapshot) -> str:
    return (
        f"{snapshot.status}, {snapshot.completed} completed and {snapshot.failed} failed "
        f"of {snapshot.total}, {snapshot.stored_before} stored"
    )


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = _arguments()
    seed, ticker = drawn_seed(args.seed), Ticker()
    options = BatchOptions(
        seed=seed,
        lines=args.lines,
        runner_kills=args.runner_kills,
        worker_kills=args.worker_kills,
    )
    err.print(f"seed {seed}: {args.lines} lines")
    folder = Path(tempfile.mkdtemp(prefix="rose-batch-"))
    try:
        with forking():
            outcome = BatchRun(
                options, folder, lambda snapshot: ticker.tick(lambda: _progress(snapshot))
            ).run()
    except RoseError as error:
        err.print(f"chaos: {error}")
        sys.exit(2)
    finally:
        shutil.rmtree(folder)
    tell_result(as_json(options, outcome), outcome.findings, as_json=args.json)
    sys.exit(1 if outcome.findings else 0)


def as_json(options: BatchOptions, outcome: Outcome) -> dict[str, Any]:
    return {
        "ok": not outcome.findings,
        "seed": options.seed,
        "lines": options.lines,
        "output": outcome.output_lines,
        "errors": outcome.error_lines,
        "runner kills": outcome.runner_kills,
        "worker kills": outcome.worker_kills,
        "epochs": outcome.epoch,
        "snapshots": len(outcome.snapshots),
        "rules": count_names(Rule, outcome.findings),
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
