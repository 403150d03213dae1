"""By itself: the cost of a token as requests wait, as its context grows, and as prompts arrive."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
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
_DECODING = 8
_DECODING_PROMPT_TOKENS = 64
_BETWEEN = 16  # decode steps between two arrivals


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


@dataclass(slots=True)
class _Watch:
    """When tokens came; seconds."""

    last: dict[str, float] = field(default_factory=dict)
    intervals: list[float] = field(default_factory=list)
    asked: dict[str, float] = field(default_factory=dict)
    first_tokens: list[float] = field(default_factory=list)

    def step(self, scheduler: OnlineScheduler) -> None:
        outputs = scheduler.step()
        now = time.perf_counter()
        for output in outputs:
            name = output.request_id
            if name in self.asked:
                self.first_tokens.append(now - self.asked.pop(name))
            elif name in self.last:
                self.intervals.append(now - self.last[name])
            self.last[name] = now


@dataclass
class Interference(Case):
    """How long prompts that arrive slow down requests that are decoding.

    Arrivals ask for one token: after that their slots are free again. No target: a smaller
    `max_step_tokens` buys latency with time to first token.
    """

    title: str
    ours: Ours
    scale: Scale

    def round(self, board: Board, turn: int) -> None:
        scheduler = self.ours.scheduler()
        self._start_decoding(scheduler, turn)
        alone, disturbed = _Watch(), _Watch()
        for _ in range(self.scale.arrivals * _BETWEEN // 2):
            alone.step(scheduler)
        for number in range(self.scale.arrivals):
            self._arrive(scheduler, disturbed, f"arrival/{turn}/{number}")
            while disturbed.asked:
                disturbed.step(scheduler)
            for _ in range(_BETWEEN):
                disturbed.step(scheduler)
        for number in range(_DECODING):
            scheduler.abort(_name(turn, number))
        who = f"prompts of {self.scale.arrival_tokens:,} tokens arriving"
        board.add("alone", _percentiles("inter-token latency", alone.intervals))
        board.add(who, _percentiles("inter-token latency", disturbed.intervals))
        board.add(who, _percentiles("time to first token", disturbed.first_tokens))

    def _start_decoding(self, scheduler: OnlineScheduler, turn: int) -> None:
        """Until each has its first token."""
        room = self.ours.engine.context_length - _DECODING_PROMPT_TOKENS
        vocabulary = self.ours.engine.vocab_size
        for number in range(_DECODING):
            name = _name(turn, number)
            prompt = random_prompt(_DECODING_PROMPT_TOKENS, vocabulary, seed=name)
            scheduler.add_request(prompt, request_id=name, params=exactly(room))
        started: set[str] = set()
        while len(started) < _DECODING:
            started |= {output.request_id for output in scheduler.step()}

    def _arrive(self, scheduler: OnlineScheduler, watch: _Watch, name: str) -> None:
        prompt = random_prompt(self.scale.arrival_tokens, self.ours.engine.vocab_size, seed=name)
        watch.asked[name] = time.perf_counter()
        scheduler.add_request(prompt, request_id=name, params=exactly(1))


def _name(turn: int, number: int) -> str:
    return f"decoding/{turn}/{number}"


def _percentiles(what: str, seconds: Sequence[float]) -> dict[str, float]:
    return {
        f"{what} p50, ms": statistics.median(seconds) * 1e3,
        f"{what} p99, ms": percentile(seconds, 99) * 1e3,
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that at least `percent` of all do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
