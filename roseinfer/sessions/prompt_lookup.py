"""Prompt lookup: drafts the tokens that followed when a sequence's last n-gram came before.

Texts that repeat are drafted well: an edited document, a quotation, the keys of JSON. A draft costs
nothing but a look into a table, so one is made for every token, and each generated token says
whether it was right. These answers give the acceptance rate of the next draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from roseinfer.sessions.acceptance import AcceptanceRate, probabilities

_NGRAM = 2  # so many tokens must agree before what followed them is drafted

# Acceptance rates are kept apart for tokens behind a match of 2 or 3, of 4 to 7, of 8 to 15, and of
# more tokens: the longer two passages have agreed, the more likely they go on to.
_PRIORS = (0.2, 0.5, 0.8, 0.9)


class PromptLookup:
    """The drafts of one sequence of tokens, which only grows."""

    def __init__(self) -> None:
        self._known = 0
        self._continuations: dict[tuple[int, ...], int] = {}
        """n-gram -> the index behind its latest occurrence"""
        self._source: int | None = None
        """the index of the next token's draft"""
        self._matched = 0
        """tokens before `_source` that agree with the last ones"""
        self._rates = [AcceptanceRate(prior) for prior in _PRIORS]

    def update(self, tokens: Sequence[int]) -> bool:
        """Index what `tokens` have grown by. Returns whether there is a draft."""
        if not self._known:
            self._index_all_but_last(tokens)
        for index in range(self._known, len(tokens)):
            self._add(tokens, index)
        self._known = len(tokens)
        return self._source is not None

    def _index_all_but_last(self, tokens: Sequence[int]) -> None:
        self._known = max(len(tokens) - 1, 0)
        shifted = [islice(tokens, start, self._known) for start in range(_NGRAM)]
        self._continuations.update(
            zip(zip(*shifted, strict=False), range(_NGRAM, len(tokens)), strict=False)
        )

    def _add(self, tokens: Sequence[int], index: int) -> None:
        source = self._source
        if source is not None:
            accepted = tokens[source] == tokens[index]
            self._rate(self._matched).record(accepted)
            self._source = source + 1 if accepted else None
            self._matched += 1
        if index + 1 < _NGRAM:
            return
        key = tuple(tokens[index + 1 - _NGRAM : index + 1])
        if self._source is None:
            self._source, self._matched = self._continuations.get(key), _NGRAM
        self._continuations[key] = index + 1

    def _rate(self, matched: int) -> AcceptanceRate:
        return self._rates[min((matched // _NGRAM).bit_length(), len(self._rates)) - 1]

    def acceptance(self, count: int, least: float) -> list[float]:
        """How likely the next 1, 2, ..., `count` drafts are all accepted, down to `least`."""
        if self._source is None:
            return []
        rates = (self._rate(self._matched + further).value for further in range(count))
        return probabilities(rates, least)

    def draft(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """The next `count` tokens, if `update` has found any. A repetition that is shorter than
        that goes on into itself."""
        if self._source is None or not count:
            return ()
        copied = list(tokens[self._source : self._source + count])
        period = len(tokens) - self._source
        while len(copied) < count:
            copied.append(copied[len(copied) - period])
        return tuple(copied)
