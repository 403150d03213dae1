"""How long prompts that arrive make those wait who decode, and what it costs to keep that short."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.board import Board, at_least, at_most, percentile
from benchmarks.engine.contenders import Course, Traffic
from benchmarks.engine.scale import Scale
from benchmarks.runner import Case, in_turn
from benchmarks.workload import random_prompt

RATE = "tokens/s"
CPU = "processor time, ms per token"
ALONE = "inter-token latency, nothing arriving: p50, ms"
P50 = "inter-token latency, prompts arriving: p50, ms"
P99 = "inter-token latency, prompts arriving: p99, ms"
FIRST = "time to first token of what arrives: p50, ms"
FIRST_P99 = "time to first token of what arrives: p99, ms"
_MAX_WAIT, _MIN_RATE = 4.0, 0.95
_PROMPT_TOKENS = 64
_EVERY = 64  # tokens between two arrivals


@dataclass
class Interference(Case):
    """The same work for all: as many tokens, and prompts that arrive at the same ones of them.

    `serve` gives the course of traffic by who serves it; `ours` is held to the targets, and its
    throughput to that of `base`.
    """

    title: str
    serve: Mapping[str, Callable[[Traffic], Course]]
    ours: str
    base: str
    vocabulary: int
    scale: Scale

    def round(self, board: Board, turn: int) -> None:
        arrivals = self.scale.arrivals if turn >= 0 else 1
        for who in in_turn(list(self.serve), turn):
            alone = self.serve[who](self._traffic(f"{turn}/{who}/alone", 0, 2 * _EVERY))
            board.add(who, {ALONE: statistics.median(alone.intervals) * 1e3})
            traffic = self._traffic(f"{turn}/{who}", arrivals, (arrivals + 1) * _EVERY)
            course = self.serve[who](traffic)
            board.add(who, _figures(traffic, course))

    def judge(self, board: Board) -> None:
        p99 = (P99, self.ours)
        alone = (ALONE, self.ours)
        what = f"{self.ours}: p99 while prompts arrive, to p50 while nothing does"
        board.check_ratio(what, p99, alone, at_most(_MAX_WAIT))
        what = f"{self.ours}: p99 while prompts arrive, to p50 meanwhile"
        board.check_ratio(what, p99, (P50, self.ours), at_most(_MAX_WAIT))
        what = f"{RATE}: {self.ours} to {self.base}"
        board.check_ratio(what, (RATE, self.ours), (RATE, self.base), at_least(_MIN_RATE))
        for who in self.serve:
            if who not in (self.ours, self.base):
                board.check_ratio(f"p99: {self.ours} to {who}", p99, (P99, who), at_most(1))

    def _traffic(self, seed: str, arrivals: int, new_tokens: int) -> Traffic:
        """Every prompt is another, whoever serves: nothing is found in a cache that two share."""

        def prompts(count: int, size: int, kind: str) -> list[list[int]]:
            seeds = [f"{kind}/{seed}/{number}" for number in range(count)]
            return [random_prompt(size, self.vocabulary, seed=each) for each in seeds]

        decoding = prompts(self.scale.decoding, _PROMPT_TOKENS, "decoding")
        arriving = prompts(arrivals, self.scale.arrival_tokens, "arriving")
        return Traffic(decoding, new_tokens, arriving, _EVERY)


def _figures(traffic: Traffic, course: Course) -> dict[str, float]:
    return {
        P50: statistics.median(course.intervals) * 1e3,
        P99: percentile(course.intervals, 99) * 1e3,
        FIRST: statistics.median(course.first_tokens) * 1e3,
        FIRST_P99: percentile(course.first_tokens, 99) * 1e3,
        RATE: traffic.tokens / course.seconds,
        CPU: course.cpu_seconds / traffic.tokens * 1e3,
    }
