"""Chaos over HTTP: `python -m tests.chaos.http [--responses N] [--chats N] [--seed S]`.

Two gateways behind one address, three workers, one Redis. Clients create background responses and
chat streams, and come back by the documented means alone: an Idempotency-Key until they know their
job, then `starting_after` or `Last-Event-ID`. Exit status 0 only if every rule held.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rose.errors import RoseError
from tests.chaos.command import Ticker, count_names, drawn_seed, err, tell_result
from tests.chaos.http.check import Rule
from tests.chaos.http.run import HttpOptions, HttpRun, Outcome
from tests.support.nursery import forking


def _progress(run: HttpRun) -> str:
    return (
        f"{run.progress.jobs_ended} of {len(run.outcome.received)} ended, "
        f"{run.progress.events.total()} events, {len(run.injector.log)} faults"
    )


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = _arguments()
    seed, ticker = drawn_seed(args.seed), Ticker()
    options = HttpOptions(
        seed=seed,
        responses=args.responses,
        chats=args.chats,
        replays=args.replays,
        tls=args.tls,
    )
    err.print(f"seed {seed}: {args.responses} responses, {args.chats} chats")
    folder = Path(tempfile.mkdtemp(prefix="rose-chaos-http-"))

    def on_tick(run: HttpRun) -> None:
        ticker.tick(lambda: _progress(run), run.injector.log)

    try:
        with forking():
            outcome = asyncio.run(HttpRun(options, folder, on_tick).run())
    except (RoseError, TimeoutError) as error:
        err.print(f"chaos: {error}")
        sys.exit(2)
    tell_result(as_json(options, outcome), outcome.findings, as_json=args.json)
    if outcome.findings:
        err.print(f"\nlogs are kept in {folder}", markup=False)
        sys.exit(1)
    if args.keep:
        err.print(f"logs are kept in {folder}", markup=False)
    else:
        shutil.rmtree(folder)


def as_json(options: HttpOptions, outcome: Outcome) -> dict[str, Any]:
    received = outcome.received
    return {
        "ok": not outcome.findings,
        "seed": options.seed,
        "responses": sum(one.request.endpoint == "response" for one in received),
        "chats": sum(one.request.endpoint == "chat" for one in received),
        "events": sum(len(one.frames) for one in received),
        "resumed": sum(one.resumed for one in received),
        "created again": sum(one.created - 1 for one in received),
        "came again because of": dict(sum((one.retries for one in received), Counter())),
        "replays": outcome.replays,
        "rules": count_names(Rule, outcome.findings),
        "faults": {kind.value: count for kind, count in outcome.faults.items()},
        "client connections cut": dict(outcome.cut),
        "wall_s": round(outcome.wall_s, 1),
        "server": outcome.redis.version,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.http",
        description="Is anything lost, doubled or reordered through HTTP, whatever dies?",
    )
    parser.add_argument("--responses", type=int, default=2000)
    parser.add_argument("--chats", type=int, default=500)
    parser.add_argument("--replays", type=int, default=100, help="streams that are read again")
    parser.add_argument("--seed", type=int, help="of requests and faults; default random")
    parser.add_argument("--tls", action="store_true", help="between the processes and Redis")
    parser.add_argument("--keep", action="store_true", help="the logs of a good run, too")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
