"""The tokens that a step sampled, on the device and on their way to the host."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rose.engine_records import TokenLogprob
from roseinfer.batch import DeviceTokens
from roseinfer.device_transfer import Download
from roseinfer.logprobs import Scores, logprobs, score
from roseinfer.sampling import sample_tokens
from roseinfer.session import InferenceSession


class SampledToken(NamedTuple):
    """A session's new token; `logprob` is there if the request asks for it."""

    token_id: int
    logprob: TokenLogprob | None


class SampledTokens:
    """The next token of each of `sessions`: at once on the device, later on the host."""

    def __init__(self, sessions: list[InferenceSession], logits: Tensor) -> None:
        """Sample row i of `logits` [S, V] for session i. The host does not wait."""
        rows = [session.sampling_request for session in sessions]
        self.sessions = sessions
        self._params = [row.params for row in rows]
        self._ids = sample_tokens(logits, rows) if rows else torch.empty(0, dtype=torch.int64)
        self._scores = score(logits, self._ids, self._params)
        scores = self._scores[1:] if self._scores is not None else ()
        self._download = Download([self._ids, *scores])

    @property
    def device_tokens(self) -> DeviceTokens:
        """For the next step, which can begin before the host has them."""
        rows = {session: row for row, session in enumerate(self.sessions)}
        return DeviceTokens(rows, self._ids)

    def wait(self) -> dict[InferenceSession, SampledToken]:
        """Wait until the host has them."""
        ids, *scores = self._download.wait()
        by_row: dict[int, TokenLogprob] = {}
        if self._scores is not None:
            by_row = logprobs(Scores(self._scores.rows, *scores), self._params)
        return {
            session: SampledToken(int(token_id), by_row.get(row))
            for row, (session, token_id) in enumerate(zip(self.sessions, ids.tolist(), strict=True))
        }
