"""Chaos for webhooks: `python -m tests.chaos.webhooks [--webhooks N] [--seed S]`.

Three gateways, two workers, one Redis, and a receiver that fails, redirects, hangs, drops
connections and restarts. Gateways are killed meanwhile, and secrets rotated. Exit status 0 only if
every rule held.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.command import Ticker, count_names, drawn_seed, err, run_and_tell
from tests.chaos.webhooks.check import Rule
from tests.chaos.webhooks.run import Outcome, WebhookOptions, WebhookRun


def _progress(run: WebhookRun) -> str:
    outcome = run.outcome
    return (
        f"{outcome.told} of {len(run.owed)} told, {outcome.gateway_kills} gateways and "
        f"{outcome.receiver_kills} receivers killed"
    )


def main() -> None:
    args = _arguments()
    seed, ticker = drawn_seed(args.seed), Ticker()
    options = WebhookOptions(
        seed=seed,
        webhooks=args.webhooks,
        gateway_kills=args.gateway_kills,
        receiver_kills=args.receiver_kills,
        rotations=args.rotations,
    )
    err.print(f"seed {seed}: {args.webhooks} webhooks")

    def start(folder: Path) -> Outcome:
        return WebhookRun(options, folder, lambda run: ticker.tick(lambda: _progress(run))).run()

    run_and_tell("webhooks", start, lambda outcome: _as_json(options, outcome), as_json=args.json)


def _as_json(options: WebhookOptions, outcome: Outcome) -> dict[str, Any]:
    return {
        "ok": not outcome.findings,
        "seed": options.seed,
        "webhooks": options.webhooks,
        "told": outcome.told,
        "batches": outcome.batches,
        "attempts": len(outcome.notes),
        "moods": dict(Counter(note.mood for note in outcome.notes)),
        "gateway kills": outcome.gateway_kills,
        "receiver kills": outcome.receiver_kills,
        "rules": count_names(Rule, outcome.findings),
        "wall_s": round(outcome.wall_s, 1),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.webhooks", description="Is an end ever not told?"
    )
    parser.add_argument("--webhooks", type=int, default=1000)
    parser.add_argument("--gateway-kills", type=int, default=20)
    parser.add_argument("--receiver-kills", type=int, default=10)
    parser.add_argument("--rotations", type=int, default=5)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
