"""What a request's tokens mean for its next one: how often each was there, what followed which."""

from array import array
from collections import deque
from collections.abc import Iterable


class TokenCounts:
    """Distinct tokens and how often each was generated: 0 for a token of the prompt alone."""

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        self.ids = array("q")
        self.counts = array("q")
        self._index: dict[int, int] = {}
        for token_id in prompt_ids:
            self._index_of(token_id)

    def add(self, token_id: int) -> None:
        self.counts[self._index_of(token_id)] += 1

    def _index_of(self, token_id: int) -> int:
        index = self._index.setdefault(token_id, len(self.ids))
        if index == len(self.ids):
            self.ids.append(token_id)
            self.counts.append(0)
        return index


class NgramIndex:
    """Which tokens followed each sequence of `size` - 1 tokens, so that none need come again."""

    def __init__(self, size: int, token_ids: Iterable[int]) -> None:
        self._followers: dict[tuple[int, ...], set[int]] = {}
        self._latest: deque[int] = deque(maxlen=size - 1)
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        if len(self._latest) == self._latest.maxlen:
            self._followers.setdefault(tuple(self._latest), set()).add(token_id)
        self._latest.append(token_id)

    def repeats(self) -> Iterable[int]:
        """The tokens that would repeat an n-gram."""
        return self._followers.get(tuple(self._latest), ())
