"""Batch: every contender gets the same requests at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.board import Board, at_least
from benchmarks.engine.contenders import Contender, Run
from benchmarks.engine.contenders.ours import Ours
from benchmarks.engine.contenders.transformers import Static
from benchmarks.runner import in_turn
from benchmarks.workload import Workload

METRIC = "tokens/s"
_WARM_UP = (8, 8)  # requests, and tokens of each


class Batch:
    def __init__(
        self,
        title: str,
        contenders: Sequence[Contender],
        vocabulary: int,
        requests: int,
        max_tokens: int,
    ) -> None:
        self.title = title
        self._contenders, self._vocabulary = contenders, vocabulary
        self._requests, self._max_tokens = requests, max_tokens

    def work(self, turn: int) -> Workload:
        return Workload.draw(self._requests, self._vocabulary, turn, self._max_tokens)

    def round(self, board: Board, turn: int) -> None:
        work = self.work(turn)
        if turn < 0:
            work = work.first(*_WARM_UP)
        runs: dict[str, Run] = {}
        for contender in in_turn(self._contenders, turn):
            if turn < (contender.max_rounds or turn + 1):
                run = runs[contender.name] = contender.run(work)
                run.check(work, contender.name)
                board.add(contender.name, {METRIC: run.rate})
        if turn == 0:
            board.notes += [
                note for name, run in runs.items() if (note := _note(name, run, runs, work))
            ]

    def judge(self, board: Board) -> None:
        compare(board, METRIC, {Static.name: 3})


def compare(board: Board, metric: str, targets: Mapping[str, float]) -> None:
    """The engine to each peer: at least as fast, or as `targets` says."""
    for name in board.contenders(metric):
        if name != Ours.name:
            target = at_least(targets.get(name, 1))
            rows = (metric, Ours.name), (metric, name)
            board.check_ratio(f"{Ours.name} to {name}", *rows, target)


def _note(name: str, run: Run, runs: dict[str, Run], work: Workload) -> str:
    """Says which contender was stopped, or made other tokens than the engine."""
    if not run.complete:
        return f"{name}: stopped after {run.seconds:.0f} s, at {run.tokens} of {work.tokens} tokens"
    pairs = zip(run.outputs, runs[Ours.name].outputs, strict=True)
    same = sum(list(theirs) == list(ours) for theirs, ours in pairs)
    if same == len(run.outputs):
        return ""
    return f"{name}: the same tokens as {Ours.name} for {same} of {len(run.outputs)} requests"
