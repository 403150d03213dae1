"""From logits to token ids, in one vectorised pass over the batch.

A row's token is a function of its own logits, its own parameters, its seed and its position:
nothing of it depends on which other requests share the batch. Randomness is counter-based, so the
token at position 7 draws the same number whether or not positions 0 to 6 were drawn in this
process; that is what lets a request continue elsewhere after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rose.sampling import SamplingParams
from roseinfer import native
from roseinfer.device_transfer import to_device
from roseinfer.gpu import backends
from roseinfer.logits_processors import process_logits
from roseinfer.session import SamplingRequest

# Up to this top-k, a row's largest scores are selected, not sorted out of the whole vocabulary.
_SHORT = 1024


def sample_tokens(logits: Tensor, rows: Sequence[SamplingRequest]) -> Tensor:
    """Pick one token id for each row of `logits` [B, V]; greedy rows take the exact argmax.

    `logits` are left as they are. Only rows with a logits processor pay for one. Nothing here
    waits for the device.
    """
    processed = _ProcessedRows.of(logits, rows)
    if native.can_draw(logits):
        return _sample_compiled(logits, rows, processed)
    if backends.can_draw(logits):
        return _sample_by_kernel(logits, rows, processed)
    ids = _argmax(logits)
    if processed is not None:
        ids[processed.index] = _argmax(processed.values)
    chosen = [i for i, row in enumerate(rows) if row.params.do_sample]
    if chosen:
        params = [rows[i].params for i in chosen]
        numbers = [chosen, [p.seed or 0 for p in params], [rows[i].position for i in chosen]]
        counters = to_device(torch.tensor(numbers, dtype=torch.int64), logits.device)
        index, seeds, positions = counters.unbind()
        scores = logits[index].double()
        if processed is not None:
            processed.replace(scores, chosen)
        ids[index] = _inverse_cdf(filter_logits(scores, params), uniform(seeds, positions))
    return ids


def _sample_compiled(
    logits: Tensor, rows: Sequence[SamplingRequest], processed: _ProcessedRows | None
) -> Tensor:
    values = [*logits[: len(rows)]]
    if processed is not None:
        for row, after in zip(processed.rows, processed.values, strict=True):
            values[row] = after
    params = [row.params for row in rows]
    numbers = [0.0] * len(rows)
    if any(p.do_sample for p in params):
        seeds = torch.tensor([p.seed or 0 for p in params], dtype=torch.int64)
        numbers = uniform(seeds, torch.tensor([row.position for row in rows])).tolist()
    return torch.tensor(native.draw_rows(values, params, numbers))


def _sample_by_kernel(
    logits: Tensor, rows: Sequence[SamplingRequest], processed: _ProcessedRows | None
) -> Tensor:
    # Triton's, which only a machine with a GPU must have.
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
        found = [i for i, row in enumerate(rows) if row.logits_processor is not None]
        if not found:
            return None
        index = to_device(torch.tensor(found), logits.device)
        values = logits[index].float()
        wanted = [
            (row.logits_processor, row.position) for row in rows if row.logits_processor is not None
        ]
        process_logits(values, wanted)
        return cls(found, index, values)

    def replace(self, scores: Tensor, chosen: Sequence[int]) -> None:
        """Put the processed logits into `scores`, which holds the rows `chosen` of the batch."""
        place = {row: number for number, row in enumerate(chosen)}
        pairs = [(place[row], number) for number, row in enumerate(self.rows) if row in place]
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
    knobs = to_device(table, scores.device)
    temperature, top_k, top_p, min_p = (knob.unsqueeze(1) for knob in knobs)
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
    """Rows with a top-k or top-p, by how many of their largest scores decide it.

    A row's width follows from its own parameters alone, and so do its last bits.
    """
    short = [i for i, p in enumerate(params) if p.top_k is not None and p.top_k <= _SHORT]
    known = set(short)
    long = [
        i for i, p in enumerate(params) if i not in known and (p.top_k is not None or p.top_p < 1)
    ]
    return [(rows, width) for rows, width in ((short, _SHORT), (long, vocab)) if rows]


def _floor(scores: Tensor, top_k: Tensor, top_p: Tensor, width: int) -> Tensor:
    """The least score [B, 1] of each row that passes `top_k` and `top_p` [B, 1].

    The `width` largest scores are looked at in ascending order; where they are not all, `top_k` is
    no more than they are, and sorting the whole vocabulary is spared.
    """
    if width < scores.shape[1]:
        ascending = scores.topk(width, dim=-1).values.flip(-1)
    else:
        ascending = scores.sort(dim=-1).values
    kth = ascending.gather(1, ascending.shape[1] - top_k)
    top = ascending[:, -1:]
    cut = ascending < kth
    # Ties with the k-th for which there was no more room.
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
    # The whole row is nan where a grammar allows nothing: an id that is none would do harm.
    return torch.minimum(picked, last).squeeze(1).clamp_(max=scores.shape[1] - 1)


# splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), its
# constants written as the signed 64-bit integers that torch's wrapping arithmetic wants.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX2 = 0x94D049BB133111EB - 2**64


def _shift(bits: Tensor, by: int) -> Tensor:
    """Logical shift right: torch's `>>` on int64 copies the sign bit."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift(bits, 30)) * _MIX1
    bits = (bits ^ _shift(bits, 27)) * _MIX2
    return bits ^ _shift(bits, 31)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """One float64 in [0, 1) for each (seed, position) pair of the int64 tensors [B]."""
    state = _mix(seeds + _GOLDEN) + (positions + 1) * _GOLDEN
    return _shift(_mix(state), 11).double() * 2.0**-53
