"""The HTTP gateway against the Python client, in one run.

    python -m benchmarks.gateway [--only streams,first,...] [--rounds N] [--scale quick]
        [--json FILE]

Each measurement has a fresh redis-server, a worker process, a gateway process and a process that
loads them, all on this machine. The clients of the gateway are raw sockets.
"""

import argparse
import os
from dataclasses import dataclass

from benchmarks.board import at_least
from benchmarks.gateway.cases.batch import Batch
from benchmarks.gateway.cases.first_token import FirstToken
from benchmarks.gateway.cases.open_streams import OpenStreams
from benchmarks.gateway.cases.streams import Streams
from benchmarks.report import environment
from benchmarks.runner import Case, Runner, exit_on_sigterm, options

_CASES = ("streams", "null", "first", "open", "batch", "batch-null")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int = 5
    clients: int = 32
    tokens: int = 500
    null_tokens: int = 2000
    first_tokens: int = 200
    open_streams: int = 1000
    open_tokens: int = 50
    batch_lines: int = 2000
    batch_tokens: int = 64


_SCALES = {
    "full": Scale(),
    "quick": Scale(
        rounds=3, tokens=200, null_tokens=500, first_tokens=100, open_tokens=20, batch_lines=500
    ),
    "tiny": Scale(
        rounds=1,
        clients=4,
        tokens=20,
        null_tokens=20,
        first_tokens=20,
        open_streams=20,
        open_tokens=5,
        batch_lines=40,
        batch_tokens=5,
    ),
}


def build(scale: Scale) -> dict[str, Case]:
    clients = scale.clients
    return {
        "streams": Streams(
            f"{clients} streams at once, built-in model", clients, scale.tokens, at_least(0.93)
        ),
        "null": Streams(
            f"{clients} streams at once, null engine",
            clients,
            scale.null_tokens,
            worker={"engine": "null"},
        ),
        "first": FirstToken(scale.first_tokens),
        "open": OpenStreams(scale.open_streams, scale.open_tokens),
        "batch": Batch(
            f"A file of {scale.batch_lines:,} requests, built-in model",
            scale.batch_lines,
            scale.batch_tokens,
            at_least(0.95),
        ),
        "batch-null": Batch(
            f"A file of {scale.batch_lines:,} requests, null engine",
            scale.batch_lines,
            scale.batch_tokens,
            worker={"engine": "null"},
        ),
    }


def main() -> None:
    args = _arguments()
    scale = _SCALES[args.scale]
    facts = environment(
        "benchmarks.gateway", ("fastapi", "uvicorn", "redis", "hiredis", "torch"), {}
    )
    runner = Runner(facts, args.rounds or scale.rounds, args.json, warm_up=False)
    cases = build(scale)
    for name in args.only:
        runner.measure(name, cases[name])


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.gateway", __doc__, _CASES)
    add = parser.add_argument
    add("--scale", choices=_SCALES, default="full", help="tiny proves that it runs, no more")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    exit_on_sigterm()
    main()
