"""What the metrics cost a step: the worker's own calls to them, beside steps of the built-in model.

    python -m benchmarks.metrics [--rounds N]

Both in CPU time of one thread, so that a busy machine changes nothing. In a worker the metrics run
on the event loop's thread and the step on another, so this is the most that they can cost.
"""

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console

from benchmarks.board import Board
from benchmarks.report import show
from rose.engine_records import SchedulerStats, StepTimes
from rose.protocol import EntryKey, JobSpec, Partition
from rose.protocol.calls import Lease
from rose_worker.engine import ModelInfo
from rose_worker.jobs import HeldJob
from rose_worker.metrics import Metrics
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams

_STEPS = 50
_WARM_UP = 10
_BATCHES = (1, 8, 32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    engine = InferenceEngine(None)
    board = Board(f"{rounds} rounds of {_STEPS} steps, CPU time of one thread")
    for batch in _BATCHES:
        for _ in range(rounds):
            step, cost = _step_s(engine, batch), _metrics_s(batch)
            figures = {
                "step, ms": 1e3 * step,
                "metrics, us": 1e6 * cost,
                "share, %": 100 * cost / step,
            }
            board.add(f"batch of {batch}", figures)
    show(board, Console())


def _step_s(engine: InferenceEngine, batch: int) -> float:
    """A decode step of the built-in model."""
    scheduler = OnlineScheduler(engine, batch)
    params = SamplingParams(max_new_tokens=_STEPS + _WARM_UP + 1, ignore_eos=True)
    for number in range(batch):
        scheduler.add_request(f"Once upon a time {number}", params=params)
    for _ in range(_WARM_UP):
        scheduler.step()
    return _each(_STEPS, scheduler.step)


def _metrics_s(batch: int) -> float:
    """All that a worker observes for one step: as `rose_worker.publisher` does."""
    metrics = Metrics(ModelInfo("m", 512, None, "cpu", "float32"), batch)
    lease = Lease(Partition("q"), EntryKey("s", "1-0"), "0-a", "a")
    jobs = [
        HeldJob(JobSpec(id=f"0-{n}", prompt="x"), lease, 0, 1, 0.0, resumed=False)
        for n in range(batch)
    ]
    times = StepTimes(schedule=1e-4, forward=5e-3, sample=2e-4, postprocess=1e-4)
    stats = SchedulerStats(running=batch, batch_size=batch, step_times=times)

    def observe() -> None:
        now = time.monotonic()
        metrics.observe_stats(stats)
        metrics.observe_step(stats)
        for job in jobs:
            metrics.observe_tokens(job, 1, now)
        metrics.generated_tokens.inc(batch)

    return _each(20 * _STEPS, observe)


def _each(times: int, work: Callable[[], object]) -> float:
    """CPU seconds of one call, the mean."""
    started = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - started) / times


if __name__ == "__main__":
    main()
