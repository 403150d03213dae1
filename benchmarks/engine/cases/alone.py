"""By itself: the cost of a token as requests wait, and as its context grows."""

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.board import Board, at_most
from benchmarks.engine.contenders.ours import Ours, exactly
from benchmarks.engine.scale import Scale
from benchmarks.runner import Case
from benchmarks.workload import random_prompt
from roseinfer import OnlineScheduler

STEP = "step, µs per token"
SCHEDULER = "of it schedule and post-process, µs per token"
ADD = "add a request, µs"
CONTEXT = "decode step, ms"
_FLAT = 1.2
_PROMPT_TOKENS = 8
_NEW_TOKENS = 8


@dataclass
class Waiting(Case):
    """The same steps with ever more requests in the queue, which stays as long as it is."""

    ours: Ours
    scale: Scale
    title: str = "Waiting requests, built-in model: cost of a token"
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def round(self, board: Board, turn: int) -> None:
        for waiting in self.scale.waiting if turn >= 0 else self.scale.waiting[:1]:
            board.add(f"{waiting:,} waiting", self._measure(waiting))

    def judge(self, board: Board) -> None:
        few, many = (f"{self.scale.waiting[index]:,} waiting" for index in (0, -1))
        for metric in (STEP, SCHEDULER):
            rows = (metric, many), (metric, few)
            board.check_ratio(f"{metric}: {many} to {few}", *rows, at_most(_FLAT))

    def _measure(self, waiting: int) -> dict[str, float]:
        scheduler = self.ours.scheduler()
        names: list[str] = []
        adding = sum(self._add(scheduler, names) for _ in range(scheduler.max_batch_size + waiting))
        stepping = scheduling = 0.0
        tokens = 0
        while tokens < self.scale.waiting_tokens:
            began = time.perf_counter()
            outputs = scheduler.step()
            stepping += time.perf_counter() - began
            times = scheduler.stats().step_times
            scheduling += times.schedule + times.postprocess
            tokens += sum(len(output.token_ids) for output in outputs)
            finished = sum(output.finish_reason is not None for output in outputs)
            adding += sum(self._add(scheduler, names) for _ in range(finished))
        for name in names:
            scheduler.abort(name)
        return {
            STEP: stepping / tokens * 1e6,
            SCHEDULER: scheduling / tokens * 1e6,
            ADD: adding / len(names) * 1e6,
        }

    def _add(self, scheduler: OnlineScheduler, names: list[str]) -> float:
        """Seconds of `add_request`. Every prompt is another: nothing is found in the cache."""
        number = str(next(self._numbers))
        prompt = random_prompt(_PROMPT_TOKENS, self.ours.engine.vocab_size, seed=number)
        began = time.perf_counter()
        names.append(scheduler.add_request(prompt, request_id=number, params=exactly(_NEW_TOKENS)))
        return time.perf_counter() - began


@dataclass
class Context(Case):
    """Decode steps of one request at ever more tokens of context, up to the model's limit.

    No target: attention reads all of the context, and this shows what that costs.
    """

    title: str
    ours: Ours
    scale: Scale

    def round(self, board: Board, turn: int) -> None:
        steps = self.scale.context_steps
        contexts = powers_of_two(self.scale.first_context, self.ours.engine.context_length)
        for context in contexts if turn >= 0 else contexts[:1]:
            size = context - steps - 1
            prompt = random_prompt(size, self.ours.engine.vocab_size, seed=f"{context}/{turn}")
            intervals = self.ours.intervals(prompt, steps + 1)
            board.add(f"{context:,} tokens", {CONTEXT: statistics.median(intervals) * 1e3})


def powers_of_two(first: int, last: int) -> list[int]:
    """And `last` itself."""
    powers = itertools.takewhile(lambda n: n < last, (first << i for i in itertools.count()))
    return [*powers, last]
