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

from roseinfer.adjusting import Adjustment, adjust
from roseinfer.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row's request to the sampler; `position` is the index of the token to generate.

    `adjustment` is None for a request whose logits are taken as they are.
    """

    params: SamplingParams
    position: int
    adjustment: Adjustment | None = None


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """Pick one token id for each row of `logits` [B, V]; greedy rows take the exact argmax.

    `logits` are left as they are. Only rows with an adjustment pay for one.
    """
    ids = _argmax(logits)
    adjusted = _Adjusted.of(logits, rows)
    if adjusted is not None:
        ids[adjusted.index] = _argmax(adjusted.values)
    chosen = [i for i, row in enumerate(rows) if row.params.do_sample]
    if chosen:
        params = [rows[i].params for i in chosen]
        counters = torch.tensor(
            [chosen, [p.seed or 0 for p in params], [rows[i].position for i in chosen]],
            dtype=torch.int64,
        ).to(logits.device)
        index, seeds, positions = counters.unbind()
        scores = logits[index].double()
        if adjusted is not None:
            adjusted.replace(scores, chosen)
        ids[index] = _inverse_cdf(filter_logits(scores, params), uniform(seeds, positions))
    return _to_ints(ids)


@dataclass(frozen=True, slots=True)
class _Adjusted:
    """The rows of a batch that have adjustments; `values` [S, V] are their logits after them."""

    rows: list[int]
    index: Tensor
    values: Tensor

    @classmethod
    def of(cls, logits: Tensor, rows: Sequence[SamplingRow]) -> _Adjusted | None:
        found = [i for i, row in enumerate(rows) if row.adjustment is not None]
        if not found:
            return None
        index = torch.tensor(found).to(logits.device)
        values = logits[index].float()
        wanted = [(row.adjustment, row.position) for row in rows if row.adjustment is not None]
        adjust(values, wanted)
        return cls(found, index, values)

    def replace(self, scores: Tensor, chosen: Sequence[int]) -> None:
        """Put the adjusted logits into `scores`, which holds the rows `chosen` of the batch."""
        place = {row: number for number, row in enumerate(chosen)}
        pairs = [(place[row], number) for number, row in enumerate(self.rows) if row in place]
        if pairs:
            targets, sources = torch.tensor(pairs).to(scores.device).unbind(1)
            scores[targets] = self.values[sources].double()


def _argmax(logits: Tensor) -> Tensor:
    # In float32, which on CPU takes a fifth of the time that bfloat16 does.
    return logits.float().argmax(dim=-1)


def _to_ints(ids: Tensor) -> list[int]:
    return [int(i) for i in ids.tolist()]


def filter_logits(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Temperature, top-k, top-p and min-p, in that order; filtered entries become -inf.

    `scores` is [B, V] float64. The semantics are those of transformers' logits warpers: ties with
    the k-th score stay in, the token that crosses `top_p` stays in, `min_p` is relative to the
    most probable token, and at least one token always remains.
    """
    vocab = scores.shape[1]
    knobs = torch.tensor(
        [
            [p.temperature for p in params],
            [min(p.top_k or vocab, vocab) for p in params],
            [p.top_p for p in params],
            [p.min_p for p in params],
        ],
        dtype=torch.float64,
    ).to(scores.device)
    temperature, top_k, top_p, min_p = (knob.unsqueeze(1) for knob in knobs)
    scores = scores / temperature
    # Skipping a filter that no row asks for changes no row: it would have kept every entry.
    if any(p.top_k is not None or p.top_p < 1 for p in params):
        scores = _keep_top(scores, top_k.long(), top_p)
    if any(p.min_p > 0 for p in params):
        probs = scores.softmax(dim=-1)
        floor = min_p * probs.amax(dim=-1, keepdim=True)
        scores = scores.masked_fill(probs < floor, -torch.inf)
    return scores


def _keep_top(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Top-k and top-p from one ascending sort. `top_k` and `top_p` are [B, 1]."""
    ascending, order = scores.sort(dim=-1, stable=True)
    kth = ascending.gather(1, scores.shape[1] - top_k)
    ascending = ascending.masked_fill(ascending < kth, -torch.inf)
    below = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    below &= top_p < 1
    below[:, -1] = False
    ascending = ascending.masked_fill(below, -torch.inf)
    return torch.empty_like(scores).scatter_(1, order, ascending)


def _inverse_cdf(scores: Tensor, draws: Tensor) -> Tensor:
    """The id [B] at which the cumulative probability of `scores` [B, V] passes `draws` [B]."""
    cdf = scores.softmax(dim=-1).cumsum(dim=-1)
    total = cdf[:, -1:].contiguous()
    picked = torch.searchsorted(cdf, draws.unsqueeze(1) * total, right=True)
    # Rounding may lift draw * total to total itself; the last id of non-zero probability is where
    # the cdf first reaches its total.
    last = torch.searchsorted(cdf, total)
    return torch.minimum(picked, last).squeeze(1)


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
