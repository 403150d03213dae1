"""What tenants get and what they cost.

    python -m benchmarks.tenants [--only shares,newcomer,...] [--rounds N] [--scale full|quick|tiny]
        [--old COMMIT] [--json FILE]

`shares` counts time in steps, so a busy machine changes nothing; the other cases measure it.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.report import environment
from benchmarks.runner import Case, Runner, exit_on_sigterm, options
from benchmarks.tenants.cases import newcomer, shares
from benchmarks.tenants.cases.cost import Cost, Figure
from benchmarks.tenants.cases.fetching import Fetching
from benchmarks.tenants.cases.memory import Crowd, Memory

_NEWCOMERS = {
    "newcomer": newcomer.Setting(1, 16, 1),
    "newcomer-partitions": newcomer.Setting(1, 16, 4),
    "newcomer-workers": newcomer.Setting(3, 16, 4),
}
_SHARES = {
    "shares": (shares.Setting(2, 16), shares.Setting(10, 32), shares.Setting(50, 64)),
    "shares-partitions": (shares.Setting(20, 16, workers=3, partitions=4),),
}
_CASES = (*_SHARES, *_NEWCOMERS, "fetching", "cost", "memory")
#: Their figures do not scatter.
_ONCE = {*_SHARES, *_NEWCOMERS, "memory"}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int
    share_seconds: int
    windows_s: tuple[tuple[int, float], ...]
    waiting: int
    reserve: int
    arrivals: int
    tenants: tuple[int, int]
    fetches: int
    blocks: int
    submitted: int
    drained: int
    long_jobs: int
    engine_jobs: int
    round_trips: tuple[int, int]
    many_jobs: int
    many_tenants: int


_SCALES = {
    "full": Scale(
        rounds=5,
        share_seconds=660,
        windows_s=((60, 0.95), (600, 0.99)),
        waiting=100_000,
        reserve=40_000,
        arrivals=1000,
        tenants=(10, 100_000),
        fetches=2000,
        blocks=16,
        submitted=10_000,
        drained=10_000,
        long_jobs=1000,
        engine_jobs=200,
        round_trips=(20, 100),
        many_jobs=1_000_000,
        many_tenants=100_000,
    ),
    "quick": Scale(
        rounds=3,
        share_seconds=90,
        windows_s=((60, 0.95),),
        waiting=10_000,
        reserve=10_000,
        arrivals=200,
        tenants=(10, 10_000),
        fetches=500,
        blocks=8,
        submitted=5_000,
        drained=5_000,
        long_jobs=500,
        engine_jobs=100,
        round_trips=(20, 40),
        many_jobs=100_000,
        many_tenants=10_000,
    ),
    "tiny": Scale(
        rounds=1,
        share_seconds=4,
        windows_s=((2, 0.0),),
        waiting=50,
        reserve=250,
        arrivals=3,
        tenants=(2, 20),
        fetches=5,
        blocks=1,
        submitted=100,
        drained=300,
        long_jobs=10,
        engine_jobs=10,
        round_trips=(5, 1),
        many_jobs=200,
        many_tenants=20,
    ),
}


def build(scale: Scale, old: str | None) -> dict[str, Callable[[], Case]]:
    figures = (
        Figure("submit", "bulk submit, jobs/s", scale.submitted, scale.blocks, True, 0.9),
        Figure("drain", "drain of one-token jobs, jobs/s", scale.drained, scale.blocks, True, 0.9),
        Figure(
            "tokens", "tokens/s of jobs of 50 tokens", scale.long_jobs, scale.blocks, True, 0.98
        ),
        Figure(
            "engine",
            "tokens/s of such jobs, by the engine",
            scale.engine_jobs,
            scale.blocks,
            True,
            0.98,
            beside_older=False,
        ),
        Figure("latency", "submit to result, p50 ms", *scale.round_trips, False, 0.9),
    )
    fair = {
        name: partial(shares.Shares, settings, scale.share_seconds, scale.windows_s)
        for name, settings in _SHARES.items()
    }
    arrivals = {
        name: partial(newcomer.Newcomer, setting, scale.waiting, scale.reserve, scale.arrivals)
        for name, setting in _NEWCOMERS.items()
    }
    jobs, tenants = scale.many_jobs, scale.many_tenants
    crowds = (Crowd(tenants, 0), Crowd(tenants, tenants), Crowd(jobs, 1))
    return {
        **fair,
        **arrivals,
        "fetching": lambda: Fetching(scale.tenants, max(scale.tenants), scale.fetches),
        "cost": lambda: Cost(figures, (1, 50), old),
        "memory": lambda: Memory(crowds),
    }


def main() -> None:
    args = _arguments()
    scale = _SCALES[args.scale]
    runner = Runner(
        environment("benchmarks.tenants", ("redis", "hiredis"), {}),
        args.rounds or scale.rounds,
        args.json,
        warm_up=False,
    )
    cases = build(scale, args.old)
    for name in args.only:
        runner.measure(name, cases[name](), 1 if name in _ONCE and not args.rounds else None)


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.tenants", __doc__, _CASES)
    parser.add_argument("--scale", choices=_SCALES, default="full")
    parser.add_argument("--old", metavar="COMMIT", help="`cost` also measures this version")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    exit_on_sigterm()
    main()
