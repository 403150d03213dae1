"""Weights of 8 and 4 bits beside bfloat16: one request, and all requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.board import Board, at_least
from benchmarks.engine.cases.beside_peers import DECODE, METRIC
from benchmarks.engine.contenders.ours import Ours
from benchmarks.engine.scale import Scale
from benchmarks.runner import Case, in_turn
from benchmarks.workload import Workload, random_prompt

PLAIN = "bfloat16"
#: Format, and how many times bfloat16's tokens/s one request is to make.
TARGETS = {"int8": 1.6, "int4": 2.2}
_PROMPT_TOKENS = 64
_WARM_UP = (8, 8)  # requests, and tokens of each


@dataclass
class Quantized(Case):
    title: str
    contenders: Sequence[Ours]
    vocabulary: int
    scale: Scale

    def round(self, board: Board, turn: int) -> None:
        prompt = random_prompt(_PROMPT_TOKENS, self.vocabulary, seed=f"quantized/{turn}")
        work = Workload.draw(self.scale.requests, self.vocabulary, turn, self.scale.max_tokens)
        if turn < 0:
            work = work.first(*_WARM_UP)
        for contender in in_turn(self.contenders, turn):
            intervals = contender.intervals(prompt, self.scale.single_tokens)
            run = contender.run(work)
            run.check(work, contender.name)
            figures = {DECODE: len(intervals) / sum(intervals), METRIC: run.rate}
            board.add(contender.name, figures)

    def judge(self, board: Board) -> None:
        for name, target in TARGETS.items():
            for what, metric, least in (("alone", DECODE, target), ("at once", METRIC, 1.0)):
                rows = (metric, name), (metric, PLAIN)
                board.check_ratio(f"{name} to {PLAIN}, {what}", *rows, at_least(least))
