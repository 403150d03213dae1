"""Chaos for a batch: `python -m tests.chaos.batch [--lines N] [--seed S]
[--endpoint /v1/completions|/v1/embeddings] [--model] [--chat]`.

Two gateways, three workers, one Redis. SIGKILL strikes whoever runs the batch, as soon as it is
another one than before, and workers. Exit status 0 only if every rule held.
"""

import argparse
from pathlib import Path
from typing import Any, get_args

from tests.chaos.batch.check import Rule, Snapshot
from tests.chaos.batch.lines import Endpoint
from tests.chaos.batch.run import BatchOptions, BatchRun, Outcome
from tests.chaos.command import Ticker, count_names, drawn_seed, err, run_and_tell


def _progress(snapshot: Snapshot) -> str:
    return (
        f"{snapshot.status}, {snapshot.completed} completed and {snapshot.failed} failed "
        f"of {snapshot.total}, {snapshot.stored_before} stored"
    )


def main() -> None:
    args = _arguments()
    seed, ticker = drawn_seed(args.seed), Ticker()
    options = BatchOptions(
        seed=seed,
        endpoint=args.endpoint,
        model=args.model,
        chat=args.chat,
        lines=args.lines,
        runner_kills=args.runner_kills,
        worker_kills=args.worker_kills,
    )
    err.print(f"seed {seed}: {args.lines} lines")

    def start(folder: Path) -> Outcome:
        return BatchRun(
            options, folder, lambda snapshot: ticker.tick(lambda: _progress(snapshot))
        ).run()

    run_and_tell("batch", start, lambda outcome: _as_json(options, outcome), as_json=args.json)


def _as_json(options: BatchOptions, outcome: Outcome) -> dict[str, Any]:
    return {
        "ok": not outcome.findings,
        "seed": options.seed,
        "endpoint": options.endpoint,
        "lines": options.lines,
        "output": outcome.output_lines,
        "errors": outcome.error_lines,
        "runner kills": outcome.runner_kills,
        "worker kills": outcome.worker_kills,
        "epochs": outcome.epoch,
        "snapshots": len(outcome.snapshots),
        "rules": count_names(Rule, outcome.findings),
        "chat": outcome.chat,
        "wall_s": round(outcome.wall_s, 1),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.batch", description="Kill whoever runs a batch."
    )
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--runner-kills", type=int, default=20)
    parser.add_argument("--worker-kills", type=int, default=20)
    parser.add_argument("--endpoint", choices=get_args(Endpoint), default="/v1/completions")
    parser.add_argument("--model", action="store_true", help="embeddings are a small encoder's")
    parser.add_argument("--chat", action="store_true", help="measure a chat beside it")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
