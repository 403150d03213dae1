"""Beside peers: the same requests at once, and one request that is alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.board import Board, at_least, at_most
from benchmarks.engine.contenders import Contender, Run, Streaming
from benchmarks.engine.contenders.ours import Ours
from benchmarks.engine.contenders.transformers import Static
from benchmarks.engine.scale import Scale
from benchmarks.limits import read_rate
from benchmarks.runner import Case, in_turn
from benchmarks.workload import Workload, random_prompt

METRIC = "tokens/s"
DECODE = "decode, tokens/s"
SHARE = "share of the memory limit"
MEMORY = "memory read, GB/s"
_WARM_UP = (8, 8)  # requests, and tokens of each
_MIN_SHARE = 0.6
_PROMPT_TOKENS = 64


@dataclass
class Batch(Case):
    """Every contender gets the same requests at once."""

    title: str
    contenders: Sequence[Contender]
    vocabulary: int
    scale: Scale

    def work(self, turn: int) -> Workload:
        return Workload.draw(self.scale.requests, self.vocabulary, turn, self.scale.max_tokens)

    def round(self, board: Board, turn: int) -> None:
        work = self.work(turn)
        if turn < 0:
            work = work.first(*_WARM_UP)
        runs: dict[str, Run] = {}
        for contender in in_turn(self.contenders, turn):
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


@dataclass
class Single(Case):
    """A token needs all weights once: the limit is the memory's rate over their bytes.

    Only decode steps count: the first token, which ends the prefill, does not.
    """

    title: str
    contenders: Sequence[Streaming]
    vocabulary: int
    weight_bytes: int
    scale: Scale

    def __post_init__(self) -> None:
        self._numbers = torch.ones(self.scale.sum_elements)

    def round(self, board: Board, turn: int) -> None:
        memory = read_rate(self._numbers)
        board.add("a float32 sum", {MEMORY: memory / 1e9})
        prompt = random_prompt(_PROMPT_TOKENS, self.vocabulary, seed=f"single/{turn}")
        for contender in in_turn(self.contenders, turn):
            intervals = contender.intervals(prompt, self.scale.single_tokens)
            rate = len(intervals) / sum(intervals)
            share = rate * self.weight_bytes / memory
            board.add(contender.name, {DECODE: rate, SHARE: share})

    def judge(self, board: Board) -> None:
        compare(board, DECODE, {})
        board.check_figure((SHARE, Ours.name), at_least(_MIN_SHARE))


@dataclass
class LongPrompts(Case):
    """One request that is alone, of ever longer prompts: its first token, and those after it."""

    title: str
    contenders: Sequence[Streaming]
    asked: Mapping[str, str]
    """of ours, by the peers that they are compared with"""
    vocabulary: int
    scale: Scale

    def round(self, board: Board, turn: int) -> None:
        lengths = self.scale.long_prompts if turn >= 0 else self.scale.long_prompts[:1]
        for length in lengths:
            prompt = random_prompt(length, self.vocabulary, seed=f"long/{length}/{turn}")
            for contender in in_turn(self.contenders, turn):
                first, *later = contender.token_times(prompt, self.scale.long_tokens)
                rate = len(later) / (later[-1] - first)
                board.add(contender.name, {_first(length): first, _later(length): rate})

    def judge(self, board: Board) -> None:
        for peer, ours in self.asked.items():
            for length in self.scale.long_prompts:
                for metric, target in ((_first, at_most(1)), (_later, at_least(1))):
                    rows = (metric(length), ours), (metric(length), peer)
                    board.check_ratio(f"{metric(length)}: {ours} to {peer}", *rows, target)


def _first(length: int) -> str:
    return f"first token of {length:,}, s"


def _later(length: int) -> str:
    return f"after {length:,}, tokens/s"


def weight_bytes(model: Any) -> int:
    """Bytes of weights that a token needs; of an embedding it needs a row, tied or not."""
    total = sum(p.nbytes for p in model.parameters())
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return int(total if embedding is head else total - embedding.nbytes)
