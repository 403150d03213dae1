"""Continue several prompts in one batch: `python -m roseinfer.cli_generate_batch --prompts A B`."""

import argparse
import sys
from collections.abc import Sequence

from roseinfer.cli_options import load_engine, parser, run, sampling_params


def generate(arguments: argparse.Namespace) -> None:
    params = sampling_params(arguments)
    engine = load_engine(arguments)
    if arguments.stream:
        for index, piece in engine.stream_generate_batch(arguments.prompts, params):
            print(f"[{index}] {piece!r}", flush=True)
    else:
        for index, text in enumerate(engine.generate_batch(arguments.prompts, params)):
            print(f"[{index}] {text}")


def main(argv: Sequence[str] | None = None) -> int:
    return run(generate, parser("Continue several prompts.", several_prompts=True), argv)


if __name__ == "__main__":
    sys.exit(main())
