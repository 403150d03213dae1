"""Continue one prompt: `python -m roseinfer.cli_generate --stream --prompt "Once upon a time"`."""

import argparse
import sys
from collections.abc import Sequence

from roseinfer.cli_options import load_engine, parser, run, sampling_params


def generate(arguments: argparse.Namespace) -> None:
    params = sampling_params(arguments)
    engine = load_engine(arguments)
    if arguments.stream:
        for piece in engine.stream_generate(arguments.prompt, params):
            print(piece, end="", flush=True)
        print()
    else:
        print(engine.generate(arguments.prompt, params))


def main(argv: Sequence[str] | None = None) -> int:
    return run(generate, parser("Continue one prompt.", several_prompts=False), argv)


if __name__ == "__main__":
    sys.exit(main())
