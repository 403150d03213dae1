"""The engine beside its peers, by itself, and in its service: in one run.

    python -m benchmarks.engine [--only batch,single,...] [--model NAME ...] [--dtype NAME ...]
        [--rounds N] [--requests N] [--vllm PYTHON] [--json FILE] [--write PAGE] [--plot FILE]

Contenders take turns, so that a machine whose speed drifts slows all of them; ratios are taken
round by round. Each model has random weights of a real shape. vLLM takes part where `--vllm` names
the Python of an environment that has it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import roseinfer  # noqa: F401 - sets how long threads spin, before torch is loaded
from benchmarks.engine.measuring import CASES, PEERS, Measuring
from benchmarks.engine.plot import draw
from benchmarks.engine.scale import FULL, TINY, Scale
from benchmarks.models import NAMES
from benchmarks.options import some_of
from benchmarks.report import as_json, as_page, show, write_between
from roseinfer import native

_WIDTH = 120
_SCALES = {"full": FULL, "tiny": TINY}


def main() -> None:
    args = _arguments()
    out = Console(highlight=False, soft_wrap=True, width=_WIDTH)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rose-bench-")))
        measuring = Measuring(_scale(args), folder, args.vllm, args.vllm_modes, args.peers)
        facts = measuring.facts()
        out.print(", ".join(f"{name} {value}" for name, value in facts.items()))
        for board in measuring.run(args.only):
            show(board, out)
            facts |= measuring.versions
            if args.json:  # at once: a later case may fail, or be too slow to wait for
                args.json.write_text(json.dumps(as_json(facts, measuring.boards), indent=1))
    if args.plot:
        draw(measuring.boards, args.plot)
    if args.write:
        write_between(args.write, "benchmarks.engine", as_page(facts, measuring.boards, "###"))


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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--only", type=some_of(CASES), default=list(CASES), help=f"some of {','.join(CASES)}")
    add("--model", choices=NAMES, action="append", help="repeatable; llama-135m if not given")
    add(
        "--dtype",
        choices=["float32", "bfloat16"],
        action="append",
        help="repeatable; if not given bfloat16 on processors that multiply it, else float32",
    )
    add("--rounds", type=int, help="of each case")
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
    add(
        "--vllm-modes",
        choices=["compiled", "eager", "both"],
        default="compiled",
        help="compiled is its own default",
    )
    add("--scale", choices=_SCALES, default="full", help="tiny proves that it runs, no more")
    add("--json", type=Path, metavar="FILE", help="every round, for machines")
    add("--write", type=Path, metavar="PAGE", help="put the tables between the page's markers")
    add("--plot", type=Path, metavar="FILE", help="draw them: .svg or .png; needs matplotlib")
    return parser.parse_args()


if __name__ == "__main__":
    # As an exception, so that Redis, worker and models do not stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
