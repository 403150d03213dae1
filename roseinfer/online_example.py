"""OnlineScheduler at work: requests join while others are being decoded."""

import argparse
import sys
from collections import deque
from collections.abc import Sequence

from rose.engine_records import StepOutput
from roseinfer.cli_options import load_engine, parser, run, sampling_params
from roseinfer.scheduling.scheduler import OnlineScheduler

_STEPS_BETWEEN_ARRIVALS = 4


def online(arguments: argparse.Namespace) -> None:
    """Add a prompt every few steps, as if it had just arrived; print what each step brings."""
    params = sampling_params(arguments)
    scheduler = OnlineScheduler(load_engine(arguments), max_batch_size=8)
    arrivals = deque(enumerate(arguments.prompts))
    step = 0
    while arrivals or scheduler.has_unfinished():
        if arrivals and step % _STEPS_BETWEEN_ARRIVALS == 0:
            index, prompt = arrivals.popleft()
            name = scheduler.add_request(prompt, request_id=f"request-{index}", params=params)
            print(f"step {step}: {name} joins", flush=True)
        for output in scheduler.step():
            _show(step, output, stream=arguments.stream)
            if output.finish_reason is not None:
                print(f"{output.request_id}: {scheduler.pop_response(output.request_id)}")
        step += 1


def _show(step: int, output: StepOutput, *, stream: bool) -> None:
    if stream:
        print(f"step {step}: {output.request_id} {output.text!r}", flush=True)
    if output.finish_reason is not None:
        print(f"step {step}: {output.request_id} leaves ({output.finish_reason})", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    return run(online, parser("Serve prompts as they arrive.", several_prompts=True), argv)


if __name__ == "__main__":
    sys.exit(main())
