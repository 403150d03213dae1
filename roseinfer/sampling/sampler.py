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

from rose.sampling import SamplingParams
from roseinfer import native
from roseinfer.devices.transfer import to_device
from roseinfer.gpu import backends
from roseinfer.logits_processors.batch import process_logits
from roseinfer.sessions.session import SamplingRequest

# Up to this top-k, only a row's largest scores are sorted, not the whole vocabulary.
_MAX_SHORT_TOP_K = 1024


def sample_tokens(logits: Tensor, rows: Sequence[SamplingRequest]) -> Tensor:
    """Pick one token id for each row of `logits` [B, V]; greedy rows take the exact argmax.

    `logits` are left as they are. Only rows with a logits processor pay for one. Nothing here
    waits for the device.
    """
    processed = _ProcessedRows.of(logits, rows)
    if native.can_sample(logits):
        return _sample_compiled(logits, rows, processed)
    if backends.can_draw(logits):
        return _sample_by_kernel(logits, rows, processed)
    ids = _argmax(logits)
    if processed is not None:
        ids[processed.index] = _argmax(processed.values)
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
        ids[index] = _inverse_cdf(filter_logits(scores, params), uniform(seeds, positions))
    return ids


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


def _argmax(logits: Tensor) -> Tensor:
    # In float32, which on CPU takes a fifth of the time that bfloat16 does.
    return logits.float().argmax(dim=-1)


def filter_logits(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Temperature, top-k, top-p and min-p, in that order; filtered entries become -inf.

    `scores` is [B, V] float64. The semantics are those of transformers' logits warpers: ties with
    the k-th score stay in, the token that crosses `top_p` stays in, `min_p` is relative to the
    most probable token, and at least one token always remains. What is as likely as the token that
    crosses `top_p` stays in as well, so that no order of ties decides.
    """
    vocab = scores.shape[1]
    table = torch.tensor(
        [
            [p.temperature for p in params],
            [min(p.top_k or vocab, vocab) for p in params],
            [p.top_p for p in params],
            [p.min_p for p in params],
        ],
        dtype=torch.float64,
    )
    columns = to_device(table, scores.device).unsqueeze(2)
    temperature, top_k, top_p, min_p = columns
    scores = scores / temperature
    # Skipping a filter that a row does not ask for changes nothing: it would keep every entry.
    for rows, width in _by_width(params, vocab):
        index = to_device(torch.tensor(rows), scores.device)
        chosen = scores[index]
        floor = _floor(chosen, top_k[index].long(), top_p[index], width)
        scores[index] = chosen.masked_fill(chosen < floor, -torch.inf)
    if any(p.min_p > 0 for p in params):
        probs = scores.softmax(dim=-1)
        floor = min_p * probs.amax(dim=-1, keepdim=True)
        scores = scores.masked_fill(probs < floor, -torch.inf)
    return scores


def _by_width(params: Sequence[SamplingParams], vocab: int) -> list[tuple[list[int], int]]:
    """Rows with a top-k or top-p, grouped by how many of their largest scores are sorted.

    A row's width depends on its own parameters alone, so its result is the same in any batch.
    """
    short = [i for i, p in enumerate(params) if p.top_k is not None and p.top_k <= _MAX_SHORT_TOP_K]
    known = set(short)
    long = [
        i for i, p in enumerate(params) if i not in known and (p.top_k is not None or p.top_p < 1)
    ]
    return [(rows, width) for rows, width in ((short, _MAX_SHORT_TOP_K), (long, vocab)) if rows]


def _floor(scores: Tensor, top_k: Tensor, top_p: Tensor, width: int) -> Tensor:
    """The smallest score [B, 1] of each row that passes `top_k` and `top_p` [B, 1].

    Only the `width` largest scores are sorted. Where that is not the whole vocabulary, `top_k` is
    at most `width`.
    """
    if width < scores.shape[1]:
        ascending = scores.topk(width, dim=-1).values.flip(-1)
    else:
        ascending = scores.sort(dim=-1).values
    kth = ascending.gather(1, ascending.shape[1] - top_k)
    top = ascending[:, -1:]
    cut = ascending < kth
    # Scores that tie with the k-th but are not among the `width` largest.
    hidden = (scores >= kth).sum(dim=-1, keepdim=True) - (~cut).sum(dim=-1, keepdim=True)
    mass = (ascending - top).exp().masked_fill(cut, 0).cumsum(dim=-1)
    mass = mass + hidden * (kth - top).exp()
    below = (mass <= (1 - top_p) * mass[:, -1:]) & (top_p < 1)
    below[:, -1] = False
    return ascending.masked_fill(below | cut, torch.inf).amin(dim=-1, keepdim=True)


def _inverse_cdf(scores: Tensor, draws: Tensor) -> Tensor:
    """The id [B] at which the cumulative probability of `scores` [B, V] passes `draws` [B]."""
    cdf = scores.softmax(dim=-1).cumsum(dim=-1)
    total = cdf[:, -1:].contiguous()
    picked = torch.searchsorted(cdf, draws.unsqueeze(1) * total, right=True)
    # Rounding may lift draw * total to total itself; the last id of non-zero probability is where
    # the cdf first reaches its total.
    last = torch.searchsorted(cdf, total)
    # Where a grammar allows nothing the row is nan; the result must be a valid id all the same.
    return torch.minimum(picked, last).squeeze(1).clamp_(max=scores.shape[1] - 1)


# splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), its
# constants written as the signed 64-bit integers that torch's wrapping arithmetic wants.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX2 = 0x94D049BB133111EB - 2**64


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Logical shift right: torch's `>>` on int64 copies the sign bit."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _MIX1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX2
    return bits ^ _shift_right(bits, 31)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """One float64 in [0, 1) for each (seed, position) pair of the int64 tensors [B]."""
    state = _mix(seeds + _GOLDEN) + (positions + 1) * _GOLDEN
    return _shift_right(_mix(state), 11).double() * 2.0**-53
