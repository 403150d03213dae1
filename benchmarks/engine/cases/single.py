"""Single stream: how fast one request decodes, beside the rate at which memory gives weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.board import Board, at_least
from benchmarks.engine.cases.batch import compare
from benchmarks.engine.contenders import Streaming
from benchmarks.engine.contenders.ours import Ours
from benchmarks.limits import read_rate
from benchmarks.runner import in_turn
from benchmarks.workload import random_prompt

METRIC = "decode, tokens/s"
SHARE = "share of the memory limit"
MEMORY = "memory read, GB/s"
_MIN_SHARE = 0.6
_PROMPT_TOKENS = 64


class Single:
    """A token needs all weights once: the limit is the memory's rate over their bytes.

    Only decode steps count: the first token, which ends the prefill, does not.
    """

    def __init__(
        self,
        title: str,
        contenders: Sequence[Streaming],
        *,
        vocabulary: int,
        weight_bytes: int,
        new_tokens: int,
        sum_elements: int,
    ) -> None:
        self.title = title
        self._contenders, self._vocabulary = contenders, vocabulary
        self._weight_bytes, self._new_tokens = weight_bytes, new_tokens
        self._numbers = torch.ones(sum_elements)

    def round(self, board: Board, turn: int) -> None:
        memory = read_rate(self._numbers)
        board.add("a float32 sum", {MEMORY: memory / 1e9})
        prompt = random_prompt(_PROMPT_TOKENS, self._vocabulary, seed=f"single/{turn}")
        for contender in in_turn(self._contenders, turn):
            intervals = contender.intervals(prompt, self._new_tokens)
            rate = len(intervals) / sum(intervals)
            share = rate * self._weight_bytes / memory
            board.add(contender.name, {METRIC: rate, SHARE: share})

    def judge(self, board: Board) -> None:
        compare(board, METRIC, {})
        board.check_figure((SHARE, Ours.name), at_least(_MIN_SHARE))


def weight_bytes(model: Any) -> int:
    """Bytes of weights that a token needs; of an embedding it needs a row, tied or not."""
    total = sum(p.nbytes for p in model.parameters())
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return int(total if embedding is head else total - embedding.nbytes)
