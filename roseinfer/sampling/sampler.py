"""From logits to token ids, in one vectorised pass over the batch.

A row's token is a function of its own logits, parameters, seed and position. It does not depend on
the other requests of the batch. The random numbers are counter-based: position 7 gets the same
number whether or not this process sampled positions 0 to 6. So a request can continue in another
process after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer import native
from roseinfer.devices.transfer import to_device
from roseinfer.gpu import backends
from roseinfer.logits_processors.batch import process_logits
from roseinfer.sampling.filters import filter_logits
from roseinfer.sampling.random_numbers import uniform
from roseinfer.sessions.session import NO_TOKEN, SamplingRequest


def sample_tokens(logits: Tensor, rows: Sequence[SamplingRequest]) -> Tensor:
    """Pick one token id for each row of `logits` [B, V]; greedy rows take the exact argmax. A row
    whose largest logit is not finite gets NO_TOKEN. NaN counts as -inf.

    `logits` are left as they are. Only rows with a logits processor pay for one. Nothing here
    waits for the device.
    """
    processed = _ProcessedRows.of(logits, rows)
    if native.can_sample(logits):
        return _sample_compiled(logits, rows, processed)
    if backends.can_draw(logits):
        return _sample_by_kernel(logits, rows, processed)
    ids, finite = _argmax(logits)
    if processed is not None:
        ids[processed.index], finite[processed.index] = _argmax(processed.values)
    sampled_rows = [i for i, row in enumerate(rows) if row.params.do_sample]
    if sampled_rows:
        params = [rows[i].params for i in sampled_rows]
        numbers = [
            sampled_rows,
            [p.seed or 0 for p in params],
            [rows[i].position for i in sampled_rows],
        ]
        counters = to_device(torch.tensor(numbers, dtype=torch.int64), logits.device)
        index, seeds, positions = counters.unbind()
        scores = logits[index].double()
        if processed is not None:
            processed.replace(scores, sampled_rows)
        scores = _without_nan(scores)
        ids[index] = _inverse_cdf(filter_logits(scores, params), uniform(seeds, positions))
    return ids.masked_fill_(~finite, NO_TOKEN)


def _sample_compiled(
    logits: Tensor, rows: Sequence[SamplingRequest], processed: _ProcessedRows | None
) -> Tensor:
    parts: list[tuple[Tensor, Sequence[int]]] = [(logits, range(len(rows)))]
    if processed is not None:
        parts.append((processed.values, processed.rows))
    return native.sample_rows(parts, rows)


def _sample_by_kernel(
    logits: Tensor, rows: Sequence[SamplingRequest], processed: _ProcessedRows | None
) -> Tensor:
    # Only machines with a GPU need Triton.
    from roseinfer.gpu.sampling import KernelRequest, sample_rows

    ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    lines = {row: line for line, row in enumerate(processed.rows)} if processed is not None else {}
    plain = [KernelRequest(i, i, row) for i, row in enumerate(rows) if i not in lines]
    sample_rows(logits, plain, ids)
    if processed is not None:
        changed = [KernelRequest(line, i, rows[i]) for i, line in lines.items()]
        sample_rows(processed.values, changed, ids)
    return ids


@dataclass(frozen=True, slots=True)
class _ProcessedRows:
    """The rows of a batch that a logits processor changes, and their logits [S, V] then."""

    rows: list[int]
    index: Tensor
    values: Tensor

    @classmethod
    def of(cls, logits: Tensor, rows: Sequence[SamplingRequest]) -> _ProcessedRows | None:
        indices = [i for i, row in enumerate(rows) if row.logits_processor is not None]
        if not indices:
            return None
        index = to_device(torch.tensor(indices), logits.device)
        values = logits[index].float()
        wanted = [
            (row.logits_processor, row.position) for row in rows if row.logits_processor is not None
        ]
        process_logits(values, wanted)
        return cls(indices, index, values)

    def replace(self, scores: Tensor, batch_rows: Sequence[int]) -> None:
        """Put the processed logits into `scores`, whose rows are the `batch_rows` of the batch."""
        line_of = {row: line for line, row in enumerate(batch_rows)}
        pairs = [(line_of[row], line) for line, row in enumerate(self.rows) if row in line_of]
        if pairs:
            targets, sources = to_device(torch.tensor(pairs), scores.device).unbind(1)
            scores[targets] = self.values[sources].double()


def _argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The id [B] of the largest logit of each row, and whether it is finite."""
    # In float32, which on CPU takes a fifth of the time that bfloat16 does.
    ids = _without_nan(logits.float()).argmax(dim=-1)
    return ids, logits.gather(1, ids.unsqueeze(1)).squeeze(1).isfinite()


def _without_nan(values: Tensor) -> Tensor:
    return values.masked_fill(values.isnan(), -torch.inf)


def _inverse_cdf(scores: Tensor, draws: Tensor) -> Tensor:
    """The id [B] at which the cumulative probability of `scores` [B, V] passes `draws` [B]."""
    cdf = scores.softmax(dim=-1).cumsum(dim=-1)
    total = cdf[:, -1:].contiguous()
    picked = torch.searchsorted(cdf, draws.unsqueeze(1) * total, right=True)
    # Rounding may lift draw * total to total itself; the last id of non-zero probability is where
    # the cdf first reaches its total.
    last = torch.searchsorted(cdf, total)
    # A row without a finite logit is nan here, and nothing is found in it.
    return torch.minimum(picked, last).squeeze(1).clamp_(max=scores.shape[1] - 1)
