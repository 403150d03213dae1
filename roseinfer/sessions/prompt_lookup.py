"""Guesses of a sequence's next tokens: those that followed when its last ones came before.

Texts that repeat are guessed well: an edited document, a quotation, the keys of JSON. The guesses
cost nothing but a look into a table, so one is made for every token, and each generated token says
whether it was right. The record of these answers gives the next guess its chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

_NGRAM = 2  # so many tokens must agree before what followed them is believed

# Chances are recorded apart for tokens behind a match of 2 or 3, of 4 to 7, of 8 to 15, and of more
# tokens: the longer two passages have agreed, the more likely they go on to. Each starts with a
# prior, which weighs as much as so many answers.
_PRIORS = (0.2, 0.5, 0.8, 0.9)
_PRIOR_WEIGHT = 4.0
_MEMORY = 0.9  # what an answer still weighs after the next one


class PromptLookup:
    """Of one sequence of tokens, which only grows."""

    def __init__(self) -> None:
        self._known = 0
        self._behind: dict[tuple[int, ...], int] = {}  # n-gram -> the index behind its latest place
        self._source: int | None = None
        """where the next token is expected to be copied from"""
        self._matched = 0
        """tokens before `_source` that agree with the last ones"""
        self._records = [_Record(prior) for prior in _PRIORS]

    def follow(self, tokens: Sequence[int]) -> bool:
        """Take note of what `tokens` have grown by. Returns whether there is a guess."""
        if not self._known:
            self._index_all_but_last(tokens)
        for index in range(self._known, len(tokens)):
            self._add(tokens, index)
        self._known = len(tokens)
        return self._source is not None

    def _index_all_but_last(self, tokens: Sequence[int]) -> None:
        self._known = max(len(tokens) - 1, 0)
        shifted = [islice(tokens, start, self._known) for start in range(_NGRAM)]
        self._behind.update(
            zip(zip(*shifted, strict=False), range(_NGRAM, len(tokens)), strict=False)
        )

    def _add(self, tokens: Sequence[int], index: int) -> None:
        source = self._source
        if source is not None:
            right = tokens[source] == tokens[index]
            self._record(self._matched).note(right)
            self._source = source + 1 if right else None
            self._matched += 1
        if index + 1 < _NGRAM:
            return
        key = tuple(tokens[index + 1 - _NGRAM : index + 1])
        if self._source is None:
            self._source, self._matched = self._behind.get(key), _NGRAM
        self._behind[key] = index + 1

    def _record(self, matched: int) -> _Record:
        return self._records[min((matched // _NGRAM).bit_length(), len(self._records)) - 1]

    def chances(self, count: int, least: float) -> list[float]:
        """How likely the next 1, 2, ..., `count` guesses are all right, down to `least`."""
        chances = list[float]()
        if self._source is None:
            return chances
        chance = 1.0
        for further in range(count):
            chance *= self._record(self._matched + further).chance
            if chance < least:
                break
            chances.append(chance)
        return chances

    def guesses(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """The next `count` tokens, if `follow` has found any. A repetition that is shorter than
        that goes on into itself."""
        if self._source is None or not count:
            return ()
        copied = list(tokens[self._source : self._source + count])
        period = len(tokens) - self._source
        while len(copied) < count:
            copied.append(copied[len(copied) - period])
        return tuple(copied)


class _Record:
    __slots__ = ("_right", "_weight", "chance")

    def __init__(self, prior: float) -> None:
        self.chance = prior
        self._right, self._weight = prior * _PRIOR_WEIGHT, _PRIOR_WEIGHT

    def note(self, right: bool) -> None:
        self._right = self._right * _MEMORY + right
        self._weight = self._weight * _MEMORY + 1
        self.chance = self._right / self._weight
