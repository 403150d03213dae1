"""The engine beside its peers, by itself, and in its service: in one run.

    python -m benchmarks.engine [--only batch,single,...] [--model NAME ...] [--dtype NAME ...]
        [--rounds N] [--requests N] [--vllm PYTHON] [--json FILE] [--write PAGE] [--plot FILE]

Contenders take turns; ratios are taken round by round. Each model has random weights of a real
shape. vLLM takes part where `--vllm` names the Python of an environment that has it.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import roseinfer  # noqa: F401 - before torch: it sets how long threads spin
from benchmarks.engine.plot import draw
from benchmarks.engine.scale import FULL, TINY, Scale
from benchmarks.engine.suite import CASES, PEERS, Suite, facts
from benchmarks.models import NAMES
from benchmarks.runner import Runner, exit_on_sigterm, options, some_of
from roseinfer import native

_SCALES = {"full": FULL, "tiny": TINY}


def main() -> None:
    args = _arguments()
    scale = _scale(args)
    runner = Runner(facts(), scale.rounds, args.json)
    with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
        suite = Suite(runner, scale, Path(folder), args.vllm, args.peers)
        suite.run(args.only)
    if args.plot:
        draw(runner.boards, args.plot)
    if args.write:
        runner.write(args.write, "benchmarks.engine")


def _scale(args: argparse.Namespace) -> Scale:
    scale = _SCALES[args.scale]
    return replace(
        scale,
        rounds=args.rounds or scale.rounds,
        requests=args.requests or scale.requests,
        models=tuple(args.model or scale.models),
        dtypes=tuple(args.dtype or scale.dtypes or [_usual_dtype()]),
        limit_s=args.limit or scale.limit_s,
    )


def _usual_dtype() -> str:
    """Without instructions for it, bfloat16 takes the peers an hour."""
    return "bfloat16" if native.build_name() in ("amx", "avx512_bf16") else "float32"


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.engine", __doc__, CASES)
    add = parser.add_argument
    add("--model", choices=NAMES, action="append", help="repeatable; llama-135m if not given")
    add(
        "--dtype",
        choices=["float32", "bfloat16"],
        action="append",
        help="repeatable; if not given bfloat16 on processors that multiply it, else float32",
    )
    add(
        "--peers",
        type=some_of(PEERS, or_none=True),
        default=PEERS,
        metavar="NAMES",
        help=f"of transformers, in batch: some of {','.join(PEERS)}, or '' for vLLM alone",
    )
    add("--requests", type=int, help="at once, in batch and service")
    add("--limit", type=float, help="seconds of a round of transformers' continuous batching")
    add("--vllm", type=Path, metavar="PYTHON", help="of an environment that has vLLM")
    add("--scale", choices=_SCALES, default="full", help="tiny proves that it runs, no more")
    add("--plot", type=Path, metavar="FILE", help="draw them: .svg or .png; needs matplotlib")
    return parser.parse_args()


if __name__ == "__main__":
    exit_on_sigterm()
    main()
