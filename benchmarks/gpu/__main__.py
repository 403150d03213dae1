"""The engine on one GPU, with no network: random weights of real shapes, in one run.

    python -m benchmarks.gpu [--only nano,decode,busy,service] [--model qwen3-0.6b,llama-8b]
        [--rounds N] [--json FILE] [--write PAGE] [--cpu-smoke]

Ours takes turns with transformers' continuous batching and `generate`; what memory and products
could do at most is measured first. The service runs over the embedded broker, which without a
redis-server is fakeredis. `--cpu-smoke` runs the same code small, on CPU, through Triton's
interpreter (the service by torch's attention): it proves that it runs, no more.
"""

from __future__ import annotations

import os
import sys

if "--cpu-smoke" in sys.argv:  # before anything imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.gpu.measuring import CASES, Measuring
from benchmarks.gpu.models import CONFIGS
from benchmarks.gpu.scale import FULL, SMOKE
from benchmarks.options import some_of
from benchmarks.report import as_json, as_page, show, write_between

_WIDTH = 120


def main() -> None:
    args = _arguments()
    if not args.cpu_smoke and not torch.cuda.is_available():
        sys.exit("benchmarks.gpu: there is no GPU here; --cpu-smoke runs it small without one")
    scale = SMOKE if args.cpu_smoke else FULL
    scale = replace(scale, rounds=args.rounds or scale.rounds)
    out = Console(highlight=False, soft_wrap=True, width=_WIDTH)
    with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
        measuring = Measuring(scale, Path(folder), smoke=args.cpu_smoke)
        facts = measuring.facts()
        out.print(", ".join(f"{name} {value}" for name, value in facts.items()))
        for board in measuring.run(args.model, args.only):
            show(board, out)
            if args.json:  # at once: a later case may fail
                args.json.write_text(json.dumps(as_json(facts, measuring.boards), indent=1))
    if args.write:
        write_between(args.write, "benchmarks.gpu", as_page(facts, measuring.boards, "###"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--only", type=some_of(CASES), default=list(CASES), help=f"some of {','.join(CASES)}")
    names = list(CONFIGS)
    add("--model", type=some_of(names), default=names, help=f"some of {','.join(names)}")
    add("--rounds", type=int, help="of each case")
    add("--json", type=Path, metavar="FILE", help="every round, for machines")
    add("--write", type=Path, metavar="PAGE", help="put the tables between the page's markers")
    add("--cpu-smoke", action="store_true", help="small, on CPU, through Triton's interpreter")
    return parser.parse_args()


if __name__ == "__main__":
    main()
