"""Log-probabilities of tokens, as the model sees them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rose.engine_records import TokenLogprob
from rose.sampling import MAX_TOP_LOGPROBS, SamplingParams
from roseinfer.devices.transfer import to_device

# In place of minus infinity, which JSON lacks: OpenAI's number for "as good as impossible".
MIN_LOGPROB = -9999.0


class Scores(NamedTuple):
    """The log-probabilities of some rows, still on the device: of the chosen tokens [S], and of
    the likeliest ones [S, K]."""

    rows: list[int]
    own: Tensor
    top: Tensor
    top_ids: Tensor


def score(logits: Tensor, token_ids: Tensor, params: Sequence[SamplingParams]) -> Scores | None:
    """Score the rows of `logits` [B, V] whose parameters ask for log-probabilities.

    `token_ids` [B] are the sampled ones; the score of NO_TOKEN means nothing. Scores are the
    float32 log-softmax of the model's own logits. The host does not wait.
    """
    rows = [row for row, p in enumerate(params) if p.logprobs]
    if not rows:
        return None
    index = to_device(torch.tensor(rows), logits.device)
    scores = logits[index].float().log_softmax(dim=-1).clamp(min=MIN_LOGPROB)
    own = scores.gather(1, token_ids[index].clamp(min=0).unsqueeze(1)).squeeze(1)
    # Always the maximum: with another count, ties could be ordered in another way.
    count = min(MAX_TOP_LOGPROBS, scores.shape[1]) if any(p.top_logprobs for p in params) else 0
    top, top_ids = scores.topk(count, dim=-1)
    return Scores(rows, own, top, top_ids)


def logprobs(scores: Scores, params: Sequence[SamplingParams]) -> dict[int, TokenLogprob]:
    """By row, with as many top tokens as the row's parameters ask for. `scores` are on the host."""
    tops = zip(scores.top_ids.tolist(), scores.top.tolist(), strict=True)
    by_row: dict[int, TokenLogprob] = {}
    for row, own, (top_ids, top) in zip(scores.rows, scores.own.tolist(), tops, strict=True):
        pairs = tuple(zip(top_ids, top, strict=True))
        by_row[row] = TokenLogprob(own, pairs[: params[row].top_logprobs])
    return by_row
