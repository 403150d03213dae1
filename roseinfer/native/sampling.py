"""Sampling tokens from logits on CPU, in one call of the compiled library."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from roseinfer.native import library as c
from roseinfer.sessions.session import SamplingRequest


def can_sample(logits: Tensor) -> bool:
    """Whether the library can sample from such logits [B, V]."""
    return (
        c.available() and logits.is_cpu and logits.dtype == torch.float32 and logits.stride(-1) == 1
    )


def sample_rows(
    parts: Iterable[tuple[Tensor, Sequence[int]]], requests: Sequence[SamplingRequest]
) -> Tensor:
    """A token id [S] for each of `requests`, or NO_TOKEN. The semantics are those of
    `filters.filter_logits`; NaN counts as -inf.

    `parts` are logits [N, V] and the requests that each of their lines is for. Of several lines for
    one request the last counts. Raises ValueError where they do not fit.
    """
    addresses, vocabulary = [0] * len(requests), 0
    for values, targets in parts:
        lines, width = values.shape
        if not can_sample(values) or len(targets) > lines or width != (vocabulary or width):
            raise ValueError(
                f"logits must be float32 on CPU, a line of one length for each of {len(targets)} "
                f"requests: {values.dtype} {tuple(values.shape)}"
            )
        vocabulary = width
        address, step = values.data_ptr(), 4 * values.stride(0)
        for target in targets:
            addresses[target] = address
            address += step
    if 0 in addresses:
        raise ValueError(f"no logits for request {addresses.index(0)} of {len(requests)}")
    rows = [
        c.SampleRequest(address, p.top_k or 0, p.seed or 0, position, p.top_p, p.divisor, p.min_p)
        for address, (p, position, _) in zip(addresses, requests, strict=True)
    ]
    table = (c.SampleRequest * len(rows))(*rows)
    ids = torch.empty(len(requests), dtype=torch.int64)
    # The library starts no more threads than it is told, whatever OpenMP's own default is.
    threads = torch.get_num_threads()
    draws = any(request.params.temperature for request in requests)
    weights = torch.empty(threads if draws else 0, vocabulary)
    c.library().rose_sample(
        table, len(requests), vocabulary, weights.data_ptr(), ids.data_ptr(), threads
    )
    return ids
