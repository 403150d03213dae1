"""Log-probabilities of tokens, as the model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from roseinfer.params import MOST_TOP_LOGPROBS, SamplingParams

# In place of minus infinity, which JSON lacks: OpenAI's number for "as good as impossible".
_LEAST = -9999.0


class TokenLogprob(NamedTuple):
    """The natural logarithm of a token's probability; `top` are (token id, the same of it) of the
    likeliest tokens, as many as were asked for, the likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs(
    logits: Tensor, token_ids: Sequence[int], params: Sequence[SamplingParams]
) -> dict[int, TokenLogprob]:
    """By row of `logits` [B, V], for those whose parameters ask for it; float32 log-softmax of
    the logits as they come from the model."""
    rows = [row for row, p in enumerate(params) if p.logprobs]
    if not rows:
        return {}
    index = torch.tensor(rows).to(logits.device)
    chosen = torch.tensor([token_ids[row] for row in rows]).to(logits.device)
    scores = logits[index].float().log_softmax(dim=-1).clamp(min=_LEAST)
    own: list[float] = scores.gather(1, chosen.unsqueeze(1)).squeeze(1).tolist()
    # The most that anybody can ask for, so that ties do not fall otherwise with other rows.
    count = min(MOST_TOP_LOGPROBS, scores.shape[1]) if any(p.top_logprobs for p in params) else 0
    values, ids = scores.topk(count, dim=-1)
    tops = zip(ids.tolist(), values.tolist(), strict=True)
    found: dict[int, TokenLogprob] = {}
    for row, logprob, (top_ids, top) in zip(rows, own, tops, strict=True):
        pairs = tuple(zip(top_ids, top, strict=True))
        found[row] = TokenLogprob(logprob, pairs[: params[row].top_logprobs])
    return found
