"""Interference: how long prompts that arrive slow down requests that are decoding."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.board import Board
from benchmarks.engine.contenders.ours import Ours, exactly
from benchmarks.workload import random_prompt
from roseinfer import OnlineScheduler

_DECODING = 8
_PROMPT_TOKENS = 64
_BETWEEN = 16  # decode steps between two arrivals
_ALONE = "alone"


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


class Interference:
    """Arrivals ask for one token: after that their slots are free again."""

    def __init__(self, title: str, ours: Ours, arrivals: int, arrival_tokens: int) -> None:
        self.title = title
        self._ours = ours
        self._arrivals, self._arrival_tokens = arrivals, arrival_tokens

    def round(self, board: Board, turn: int) -> None:
        scheduler = self._ours.scheduler()
        self._start_decoding(scheduler, turn)
        alone, disturbed = _Watch(), _Watch()
        for _ in range(self._arrivals * _BETWEEN // 2):
            alone.step(scheduler)
        for number in range(self._arrivals):
            self._arrive(scheduler, disturbed, f"arrival/{turn}/{number}")
            while disturbed.asked:
                disturbed.step(scheduler)
            for _ in range(_BETWEEN):
                disturbed.step(scheduler)
        for number in range(_DECODING):
            scheduler.abort(_name(turn, number))
        who = f"prompts of {self._arrival_tokens:,} tokens arriving"
        board.add(_ALONE, _percentiles("inter-token latency", alone.intervals))
        board.add(who, _percentiles("inter-token latency", disturbed.intervals))
        board.add(who, _percentiles("time to first token", disturbed.first_tokens))

    def judge(self, board: Board) -> None:
        """No target: a smaller `max_step_tokens` buys latency with time to first token."""

    def _start_decoding(self, scheduler: OnlineScheduler, turn: int) -> None:
        """Until each has its first token."""
        room = self._ours.engine.context_length - _PROMPT_TOKENS
        vocabulary = self._ours.engine.vocab_size
        for number in range(_DECODING):
            name = _name(turn, number)
            prompt = random_prompt(_PROMPT_TOKENS, vocabulary, seed=name)
            scheduler.add_request(prompt, request_id=name, params=exactly(room))
        started: set[str] = set()
        while len(started) < _DECODING:
            started |= {output.request_id for output in scheduler.step()}

    def _arrive(self, scheduler: OnlineScheduler, watch: _Watch, name: str) -> None:
        prompt = random_prompt(self._arrival_tokens, self._ours.engine.vocab_size, seed=name)
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
