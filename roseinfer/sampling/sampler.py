"""From logits to token ids, in one vectorised pass over the batch.

A row's token is a function of its own logits, parameters, seed and position. It does not depend on
the other requests of the batch. The random numbers are counter-based: position 7 gets the same
number whether or not this process sampled positions 0 to 6. So a request can continue in another
process after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from rose.engine_records import TokenLogprob
from rose.sampling import MAX_TOP_LOGPROBS, SamplingParams
from roseinfer import native
from roseinfer.devices.transfer import Download, to_device
from roseinfer.gpu import backends
from roseinfer.logits_processors.batch import process_logits
from roseinfer.sampling.filters import filter_logits
from roseinfer.sampling.random_numbers import uniform
from roseinfer.sessions.session import (
    NO_TOKEN,
    Chunk,
    DeviceTokens,
    InferenceSession,
    SamplingRequest,
)

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


# Each row is as wide as the vocabulary, and scoring needs a few copies in float32.
_ROWS_SCORED_TOGETHER = 64


class SampledToken(NamedTuple):
    """A session's new token; `logprob` is there if the request asks for it."""

    token_id: int
    logprob: TokenLogprob | None


class SampledTokens:
    """The next token of each chunk's session: at once on the device, later on the host.

    Behind it come the tokens that follow if the chunk's drafts are accepted. Where logits depend on
    the tokens before, each of them is sampled when it is asked for: all but the first one, or,
    where a grammar leaves text free, from the token on with which that ends.
    Before all of them come the log-probabilities of prompts that want some.
    """

    def __init__(self, chunks: Sequence[Chunk], logits: Tensor) -> None:
        """`logits` [S, V] has the rows that `chunks` want, and then padding. The host does not
        wait."""
        self._chunks, self._logits = [chunk for chunk in chunks if chunk.sampled_rows], logits
        self.sessions = [chunk.session for chunk in self._chunks]
        self._scored: list[_ScoredPrompt] = []
        self._rows: list[int] = []  # of the logits, where those of each chunk's samples begin
        self._counts: list[int] = []  # of its tokens that are sampled here
        self._one_each = len(self._chunks) == sum([chunk.logit_rows for chunk in chunks])
        requests, rows = list[SamplingRequest](), list[int]()
        if self._one_each:  # as in nearly all steps
            requests = [session.sampling_request() for session in self.sessions]
            self._sampled = _Sampled(requests, logits)
            return
        row = 0
        for chunk in chunks:
            scored = chunk.scored
            if scored:
                self._scored.append(_ScoredPrompt(chunk.session, scored, logits[row:]))
                row += len(scored)
            if chunk.sampled_rows:
                requests.append(chunk.session.sampling_request())
                count = 1
                if chunk.drafts and not requests[-1].is_changed:
                    # They can be sampled before any of them is in the session.
                    further = range(1, 1 + len(chunk.drafts))
                    requests += map(chunk.session.sampling_request, further)
                    count += len(chunk.drafts)
                rows += range(row, row + count)
                self._rows.append(row)
                self._counts.append(count)
                row += chunk.sampled_rows
        self._sampled = _Sampled(requests, logits if len(rows) == row else logits[rows])

    @property
    def device_tokens(self) -> DeviceTokens:
        """For the next step, which can begin before the host has them."""
        rows = {session: row for row, session in enumerate(self.sessions)}
        return DeviceTokens(rows, self._sampled.ids)

    def wait(self) -> dict[InferenceSession, int | Iterator[SampledToken]]:
        """Wait until the host has them: of each session its tokens, or the id of the only one if it
        has no log-probability. Each of several must be asked for when the ones before it are in the
        session. Scores of prompts go into their sessions."""
        for prompt in self._scored:
            prompt.wait()
        ids, logprobs = self._sampled.wait()
        if self._one_each and not logprobs:
            return dict(zip(self.sessions, ids, strict=True))
        tokens = (SampledToken(i, logprobs.get(row)) for row, i in enumerate(ids))
        if self._one_each:
            return {session: iter([next(tokens)]) for session in self.sessions}
        turns = dict[InferenceSession, int | Iterator[SampledToken]]()
        for chunk, row, count in zip(self._chunks, self._rows, self._counts, strict=True):
            sampled = list(islice(tokens, count))
            turns[chunk.session] = (
                self._in_turn(chunk, row, sampled) if chunk.drafts else iter(sampled)
            )
        return turns

    def _in_turn(
        self, chunk: Chunk, row: int, sampled: Sequence[SampledToken]
    ) -> Iterator[SampledToken]:
        yield sampled[0]
        for further in range(1, 1 + len(chunk.drafts)):
            request = chunk.session.sampling_request()
            if further < len(sampled) and not request.is_changed:
                yield sampled[further]
            else:
                yield self._sample_again(request, row + further)

    @torch.inference_mode()
    def _sample_again(self, request: SamplingRequest, row: int) -> SampledToken:
        (token_id,), logprobs = _Sampled([request], self._logits[row : row + 1]).wait()
        return SampledToken(token_id, logprobs.get(0))


class _ScoredPrompt:
    """Log-probabilities of some of a prompt's tokens."""

    def __init__(self, session: InferenceSession, scored: range, logits: Tensor) -> None:
        """The first rows of `logits` [S, V] are those before the tokens `scored`."""
        self._session, self._first = session, scored.start
        tokens = torch.tensor(session.tokens[scored.start : scored.stop])
        ids = to_device(tokens, logits.device)
        starts = range(0, len(tokens), _ROWS_SCORED_TOGETHER)
        parts = [slice(i, min(i + _ROWS_SCORED_TOGETHER, len(tokens))) for i in starts]
        params = [session.params] * len(tokens)
        self._parts = [_Scored(logits[part], ids[part], params[part]) for part in parts]

    def wait(self) -> None:
        scores = [logprob for part in self._parts for logprob in part.wait()[1].values()]
        self._session.score(self._first, scores)


class _Scored:
    """Tokens and their scores, in one download."""

    def __init__(self, logits: Tensor, ids: Tensor, params: Sequence[SamplingParams]) -> None:
        self._params = params
        self._scores = score(logits, ids, params)
        self._download = Download([ids, *(self._scores[1:] if self._scores is not None else ())])

    def wait(self) -> tuple[list[int], dict[int, TokenLogprob]]:
        """The ids, and by row the log-probabilities that were asked for."""
        ids, *scores = self._download.wait()
        by_row: dict[int, TokenLogprob] = {}
        if self._scores is not None:
            by_row = logprobs(Scores(self._scores.rows, *scores), self._params)
        return ids.tolist(), by_row


class _Sampled(_Scored):
    """One call of the sampler."""

    def __init__(self, requests: Sequence[SamplingRequest], logits: Tensor) -> None:
        if logits.shape[0] != len(requests):
            logits = logits[: len(requests)]
        self.ids = (
            sample_tokens(logits, requests) if requests else torch.empty(0, dtype=torch.int64)
        )
        super().__init__(logits, self.ids, [request.params for request in requests])


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
        wanted = [
            (i, row.logits_processor, row.position)
            for i, row in enumerate(rows)
            if row.logits_processor is not None and row.logits_processor.changes(row.position)
        ]
        if not wanted:
            return None
        indices = [i for i, _, _ in wanted]
        index = to_device(torch.tensor(indices), logits.device)
        values = logits[index].float()
        process_logits(values, [(processor, position) for _, processor, position in wanted])
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
