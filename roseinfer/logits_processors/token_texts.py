"""The texts of a vocabulary, searched."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

#: Between two texts: no text of a tokenizer has these bytes.
_BORDER = b"\xff\x00\xff"


class TokenTexts:
    def __init__(self, texts: Sequence[bytes]) -> None:
        """By token id."""
        self.texts = texts
        self._joined = _BORDER + _BORDER.join(texts) + _BORDER
        sizes = (len(text) + len(_BORDER) for text in texts)
        self._starts = [0, *accumulate(sizes)]

    def beginning_with(self, text: bytes) -> list[int]:
        """And not equal to it."""
        return [one for one in self._found(_BORDER + text) if len(self.texts[one]) > len(text)]

    def containing(self, text: bytes) -> list[int]:
        """And not equal to it."""
        found = dict.fromkeys(self._found(text))
        return [one for one in found if len(self.texts[one]) > len(text)]

    def _found(self, text: bytes) -> Iterator[int]:
        index = self._joined.find(text)
        while index >= 0:
            yield bisect_right(self._starts, index) - 1
            index = self._joined.find(text, index + 1)
