"""Embedders are compared only where all of them make the same vectors of the same texts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.board import Board
from benchmarks.encoders.__main__ import CPU, LATENCY, OURS, QUEUED, RATE, Embedding
from benchmarks.encoders.contenders import Ours, PaddedGraph, Vectors
from benchmarks.encoders.models import POOLINGS, save_model
from benchmarks.encoders.queued import Queued


class Torch(PaddedGraph):
    """The graph that peers are given, as it is."""

    name = "torch"

    def load(self, model: nn.Module) -> None:
        self._model = model

    def run(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        with torch.inference_mode():
            vectors: Vectors = self._model(torch.tensor(ids), torch.tensor(mask)).numpy()
        return vectors


class Other(Torch):
    def run(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        return -super().run(ids, mask)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_all_are_measured_with_the_same_texts(tmp_path: Path, pooling: str) -> None:
    folder = save_model(tmp_path / "m", "tiny", pooling=pooling)
    contenders = [Ours(folder), Torch(folder)]
    board = Board("")

    for callers in (1, 4):
        Embedding("tiny", contenders, callers, 9).round(board, 0)

    names = {OURS, "torch"}
    assert {metric: set(board.contenders(metric)) for metric in (CPU, LATENCY, RATE)} == {
        CPU: names,
        LATENCY: names,
        RATE: names,
    }


def test_other_vectors_are_not_compared(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", "tiny")
    contenders: Sequence[Ours | Torch] = [Ours(folder), Other(folder)]

    with pytest.raises(RuntimeError, match="torch has other vectors"):
        Embedding("tiny", contenders, 4, 4).round(Board(""), 0)


def test_a_text_is_also_a_job_of_a_queue(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", "tiny")
    board = Board("")

    with Queued(folder) as queued:
        Embedding("tiny", [Ours(folder), queued], 1, 9).round(board, 0)

    assert board.contenders(CPU) == [OURS]
    for metric in (LATENCY, QUEUED):
        assert board.median(metric, Queued.name) > 0
