"""Weights of 8 and 4 bits: one request, and all requests at once, beside bfloat16 and llama.cpp."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from benchmarks.board import Board, Check, at_least
from benchmarks.engine.cases.beside_peers import DECODE, METRIC
from benchmarks.engine.contenders import Streaming
from benchmarks.engine.contenders.llama_cpp import LlamaCpp
from benchmarks.engine.contenders.ours import Ours
from benchmarks.engine.scale import Scale
from benchmarks.quality import logits_of
from benchmarks.runner import Case, in_turn
from benchmarks.workload import Workload, random_prompt

PERPLEXITY = "perplexity"
_PROMPT_TOKENS = 64
_WARM_UP = (8, 8)  # requests, and tokens of each


class Asked(NamedTuple):
    """How many times the tokens/s of `base` those of `name` are to be: one request, and all."""

    name: str
    base: str
    alone: float
    at_once: float


@dataclass
class Quantized(Case):
    title: str
    contenders: Sequence[Streaming]
    asked: Sequence[Asked]
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
        for name, base, alone, at_once in self.asked:
            for what, metric, least in (("alone", DECODE, alone), ("at once", METRIC, at_once)):
                rows = (metric, name), (metric, base)
                board.check_ratio(f"{name} to {base}, {what}", *rows, at_least(least))


@dataclass
class Perplexity(Case):
    """The same file in both: the same numbers, so nearly the same probabilities of a text.

    Both round activations to 8 bits, each in its own way. `dequantised` does not, and shows how
    far off that puts either.
    """

    title: str
    ours: Ours
    dequantised: Ours
    peer: LlamaCpp
    windows: Sequence[list[int]]

    def round(self, board: Board, turn: int) -> None:
        windows = self.windows if turn >= 0 else self.windows[:1]
        losses = {who.name: _loss(who, windows) for who in (self.ours, self.dequantised)}
        losses[self.peer.name] = self.peer.loss(windows)
        tokens = sum(len(ids) - 1 for ids in windows)
        for name, loss in losses.items():
            board.add(name, {PERPLEXITY: math.exp(loss / tokens)})

    def judge(self, board: Board) -> None:
        own, others = (
            f"{board.median(PERPLEXITY, who.name):.3g}" for who in (self.ours, self.peer)
        )
        what = f"{PERPLEXITY}: {self.ours.name} and {self.peer.name}"
        reached = f"{own} and {others}"
        board.checks.append(Check(what, reached, "equal to three digits", own == others))


def _loss(who: Ours, windows: Sequence[list[int]]) -> float:
    """As `LlamaCpp.loss`."""
    losses = (
        cross_entropy(logits_of(who.engine, ids).double(), torch.tensor(ids[1:]), reduction="sum")
        for ids in windows
    )
    return float(sum(losses))
