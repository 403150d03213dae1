"""From logits to token ids, in one vectorised pass over the batch.

A row's token is a function of its own logits, its own parameters, its seed and its position:
nothing of it depends on which other requests share the batch. Randomness is counter-based, so the
token at position 7 draws the same number whether or not positions 0 to 6 were drawn in this
process; that is what lets a request continue elsewhere after a crash.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rose_errors import InvalidParameter

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def _check(ok: bool, name: str, value: object, wanted: str) -> None:
    if not ok:
        raise InvalidParameter(f"{name}={value!r} is not possible: it must be {wanted}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request wants of the sampler. Raises InvalidParameter for impossible values.

    `temperature` 0.0 means greedy. `top_k` None, `top_p` 1.0 and `min_p` 0.0 filter nothing.
    A `seed` of None is replaced by a random one when the session is created. `stop` strings are
    cut from the text; `stop_token_ids` end the request like EOS does. `ignore_eos` lets a request
    run through EOS until another reason ends it.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_stops()

    def _check_numbers(self) -> None:
        count, top_k, seed = self.max_new_tokens, self.top_k, self.seed
        _check(_is_int(count) and count >= 1, "max_new_tokens", count, "an integer of at least 1")
        heat = self.temperature
        _check(_is_number(heat) and 0 <= heat <= 1e6, "temperature", heat, "between 0 and 1e6")
        fits = top_k is None or (_is_int(top_k) and top_k >= 1)
        _check(fits, "top_k", top_k, "an integer of at least 1, or None for no limit")
        _check(
            _is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "above 0, up to 1"
        )
        _check(
            _is_number(self.min_p) and 0 <= self.min_p < 1, "min_p", self.min_p, "from 0, below 1"
        )
        fits = seed is None or (_is_int(seed) and _INT64_MIN <= seed <= _INT64_MAX)
        _check(fits, "seed", seed, "a signed 64-bit integer, or None")

    def _check_stops(self) -> None:
        fits = isinstance(self.stop, tuple) and all(isinstance(s, str) and s for s in self.stop)
        _check(fits, "stop", self.stop, "a tuple of non-empty strings")
        ids = self.stop_token_ids
        fits = isinstance(ids, tuple) and all(_is_int(i) and i >= 0 for i in ids)
        _check(fits, "stop_token_ids", ids, "a tuple of token ids")
        _check(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")

    @property
    def do_sample(self) -> bool:
        """False for greedy decoding."""
        return self.temperature > 0

    def seeded(self) -> SamplingParams:
        """The same parameters with a seed: the given one, or a fresh random one."""
        if self.seed is not None:
            return self
        return replace(self, seed=secrets.randbits(63))


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row's request to the sampler; `position` is the index of the token to generate."""

    params: SamplingParams
    position: int


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """Pick one token id for each row of `logits` [B, V]; greedy rows take the exact argmax."""
    if all(not row.params.do_sample for row in rows):
        return _to_ints(_argmax(logits))
    device = logits.device
    chosen = [i for i, row in enumerate(rows) if row.params.do_sample]
    params = [rows[i].params for i in chosen]
    counters = torch.tensor(
        [chosen, [p.seed or 0 for p in params], [rows[i].position for i in chosen]],
        dtype=torch.int64,
    ).to(device)
    index, seeds, positions = counters.unbind()
    scores = filter_logits(logits[index].double(), params)
    ids = _argmax(logits)
    ids[index] = _inverse_cdf(scores, uniform(seeds, positions))
    return _to_ints(ids)


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
