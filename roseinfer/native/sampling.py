"""Sampling tokens from logits on CPU, in one call of the compiled library."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rose.sampling import SamplingParams
from roseinfer.native import library as c


def can_sample(logits: Tensor) -> bool:
    """Whether the library can sample from such logits [B, V]."""
    return (
        c.available()
        and logits.device.type == "cpu"
        and logits.dtype == torch.float32
        and logits.stride(-1) == 1
    )


def sample_rows(
    rows: Sequence[Tensor], params: Sequence[SamplingParams], numbers: Sequence[float]
) -> list[int]:
    """A token id for each of `rows` [V], contiguous: the one at which `numbers` says to stop.

    The semantics are those of `sampling.filter_logits`; the numbers are in [0, 1). A greedy row's
    number is of no account.
    """
    vocabulary = len(rows[0])
    for row in rows:
        if row.shape != (vocabulary,) or row.dtype != torch.float32 or not row.is_contiguous():
            raise ValueError(f"logits must be contiguous float32 rows of {vocabulary} values")
    requests = (c.SampleRequest * len(rows))(
        *(
            c.SampleRequest(
                row.data_ptr(), p.top_k or 0, p.top_p, number, p.temperature, p.min_p, 0
            )
            for row, p, number in zip(rows, params, numbers, strict=True)
        )
    )
    # The library starts no more threads than it is told, whatever OpenMP's own default is.
    threads = torch.get_num_threads()
    weights = torch.empty(threads, vocabulary)
    c.library().rose_sample(requests, len(rows), vocabulary, weights.data_ptr(), threads)
    return [request.id for request in requests]
