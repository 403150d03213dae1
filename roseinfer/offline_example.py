"""OfflineScheduler at work: add every prompt, run to the end, print the texts."""

import argparse
import sys
from collections.abc import Sequence

from roseinfer.cli_options import load_engine, parser, run, sampling_params
from roseinfer.scheduling.scheduler import OfflineScheduler


def offline(arguments: argparse.Namespace) -> None:
    params = sampling_params(arguments)
    scheduler = OfflineScheduler(load_engine(arguments), max_batch_size=8)
    for index, prompt in enumerate(arguments.prompts):
        scheduler.add_request(prompt, request_id=f"request-{index}", params=params)
    if arguments.stream:
        while scheduler.has_unfinished():
            for output in scheduler.step():
                print(f"{output.request_id}: {output.text!r}", flush=True)
    for request_id, text in scheduler.run().items():
        print(f"{request_id}: {text}")


def main(argv: Sequence[str] | None = None) -> int:
    return run(offline, parser("Run a batch of prompts to the end.", several_prompts=True), argv)


if __name__ == "__main__":
    sys.exit(main())
