"""The tokens that a step sampled, on the device and on their way to the host."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from rose.engine_records import TokenLogprob
from rose.sampling import SamplingParams
from roseinfer.devices.transfer import Download, to_device
from roseinfer.sampling.logprobs import Scores, logprobs, score
from roseinfer.sampling.sampler import sample_tokens
from roseinfer.sessions.chunk import Chunk, DeviceTokens
from roseinfer.sessions.session import InferenceSession, SamplingRequest

# Each row is as wide as the vocabulary, and scoring needs a few copies in float32.
_ROWS_SCORED_TOGETHER = 64


class SampledToken(NamedTuple):
    """A session's new token; `logprob` is there if the request asks for it."""

    token_id: int
    logprob: TokenLogprob | None


class SampledTokens:
    """The next token of each chunk's session: at once on the device, later on the host.

    Behind it come the tokens that follow if the chunk's drafts are accepted. Where logits depend on
    the tokens before, only the first one is sampled here, and each other one when it is asked for.
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
        requests, rows = list[SamplingRequest](), list[int]()
        row = 0
        for chunk in chunks:
            scored = chunk.scored
            if scored:
                self._scored.append(_ScoredPrompt(chunk.session, scored, logits[row:]))
                row += len(scored)
            if chunk.sampled_rows:
                own = _requests(chunk)
                requests += own
                rows += range(row, row + len(own))
                self._rows.append(row)
                self._counts.append(len(own))
                row += chunk.sampled_rows
        self._sampled = _Sampled(requests, logits if len(rows) == row else logits[rows])

    @property
    def device_tokens(self) -> DeviceTokens:
        """For the next step, which can begin before the host has them."""
        rows = {session: row for row, session in enumerate(self.sessions)}
        return DeviceTokens(rows, self._sampled.ids)

    def wait(self) -> dict[InferenceSession, Iterator[SampledToken]]:
        """Wait until the host has them. Of a session's tokens each must be asked for when the ones
        before it are in the session. Scores of prompts go into their sessions."""
        for prompt in self._scored:
            prompt.wait()
        tokens = iter(self._sampled.wait())
        return {
            chunk.session: self._in_turn(chunk, row, list(islice(tokens, count)))
            for chunk, row, count in zip(self._chunks, self._rows, self._counts, strict=True)
        }

    def _in_turn(
        self, chunk: Chunk, row: int, sampled: Sequence[SampledToken]
    ) -> Iterator[SampledToken]:
        yield from sampled
        for further in range(len(sampled), 1 + len(chunk.drafts)):
            yield self._sample_again(chunk.session, row + further)

    @torch.inference_mode()
    def _sample_again(self, session: InferenceSession, row: int) -> SampledToken:
        (token,) = _Sampled([session.sampling_request()], self._logits[row : row + 1]).wait()
        return token


def _requests(chunk: Chunk) -> list[SamplingRequest]:
    """What can be sampled before any of it is in the session."""
    request = chunk.session.sampling_request()
    if request.logits_processor is not None:
        return [request]
    further = range(1, 1 + len(chunk.drafts))
    return [request, *(chunk.session.sampling_request(distance) for distance in further)]


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
        scores = [token.logprob for part in self._parts for token in part.wait()]
        self._session.score(self._first, [score for score in scores if score is not None])


class _Scored:
    """Tokens and their scores, in one download."""

    def __init__(self, logits: Tensor, ids: Tensor, params: Sequence[SamplingParams]) -> None:
        self._params = params
        self._scores = score(logits, ids, params)
        self._download = Download([ids, *(self._scores[1:] if self._scores is not None else ())])

    def wait(self) -> list[SampledToken]:
        ids, *scores = self._download.wait()
        by_row: dict[int, TokenLogprob] = {}
        if self._scores is not None:
            by_row = logprobs(Scores(self._scores.rows, *scores), self._params)
        return [SampledToken(i, by_row.get(row)) for row, i in enumerate(ids.tolist())]


class _Sampled(_Scored):
    """One call of the sampler."""

    def __init__(self, requests: Sequence[SamplingRequest], logits: Tensor) -> None:
        if logits.shape[0] != len(requests):
            logits = logits[: len(requests)]
        self.ids = (
            sample_tokens(logits, requests) if requests else torch.empty(0, dtype=torch.int64)
        )
        super().__init__(logits, self.ids, [request.params for request in requests])
