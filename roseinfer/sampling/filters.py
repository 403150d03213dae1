"""Temperature, top-k, top-p and min-p over the logits of a batch, by torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rose.sampling import SamplingParams
from roseinfer.devices.transfer import to_device

# Up to this top-k, only a row's largest scores are sorted, not the whole vocabulary.
_MAX_SHORT_TOP_K = 1024


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
            [p.divisor for p in params],
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
        floor = _score_floor(chosen, top_k[index].long(), top_p[index], width)
        scores[index] = chosen.masked_fill(chosen < floor, -torch.inf)
    if any(p.min_p > 0 for p in params):
        floor = scores.amax(dim=-1, keepdim=True) + min_p.log()
        scores = scores.masked_fill(scores < floor, -torch.inf)
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


def _score_floor(scores: Tensor, top_k: Tensor, top_p: Tensor, width: int) -> Tensor:
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
