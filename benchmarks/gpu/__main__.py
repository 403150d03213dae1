"""The engine on one GPU, with no network: random weights of real shapes, in one run.

    python -m benchmarks.gpu [--only nano,decode,busy,service] [--model qwen3-0.6b,llama-8b]
        [--rounds N] [--json FILE] [--write PAGE] [--cpu-smoke]

The engine takes turns with transformers' continuous batching and `generate`. The limits of memory
and of products are measured first. The service runs over the embedded broker, which without a
redis-server is fakeredis. `--cpu-smoke` runs the same code small, on CPU, through Triton's
interpreter (the service by torch's attention): it proves that it runs, no more.
"""

from __future__ import annotations

import os
import sys

if "--cpu-smoke" in sys.argv:  # before anything imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

import argparse
import tempfile
from pathlib import Path

import torch

from benchmarks.gpu.suite import CASES, Suite
from benchmarks.models import ON_GPU
from benchmarks.runner import exit_on_sigterm, options, some_of


def main() -> None:
    args = _arguments()
    if not args.cpu_smoke and not torch.cuda.is_available():
        sys.exit("benchmarks.gpu: there is no GPU here; --cpu-smoke runs it small without one")
    with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
        suite = Suite(Path(folder), args.rounds, args.json, smoke=args.cpu_smoke)
        suite.run(args.model, args.only)
    if args.write:
        suite.runner.write(args.write, "benchmarks.gpu")


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.gpu", __doc__, CASES)
    names = list(ON_GPU)
    parser.add_argument(
        "--model", type=some_of(names), default=names, help=f"some of {','.join(names)}"
    )
    parser.add_argument(
        "--cpu-smoke", action="store_true", help="small, on CPU, through Triton's interpreter"
    )
    return parser.parse_args()


if __name__ == "__main__":
    exit_on_sigterm()
    main()
