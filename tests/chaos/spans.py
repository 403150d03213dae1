"""Sets of times: sorted spans that do not touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

Span = tuple[float, float]


class Spans:
    def __init__(self, spans: Iterable[Span] = ()) -> None:
        """Overlapping ones are joined, empty ones left out."""
        joined: list[Span] = []
        for began, ended in sorted(span for span in spans if span[0] < span[1]):
            if joined and began <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], ended)
            else:
                joined.append((began, ended))
        self.spans = joined
        self._begins = [began for began, _ in joined]
        lengths = [ended - began for began, ended in joined]
        self._sums = list(accumulate(lengths, initial=0.0))

    def __or__(self, other: Spans) -> Spans:
        return Spans([*self.spans, *other.spans])

    def __sub__(self, other: Spans) -> Spans:
        left: list[Span] = []
        for began, ended in self.spans:
            first = max(0, bisect_right(other._begins, began) - 1)
            for hole_began, hole_ended in other.spans[first : bisect_left(other._begins, ended)]:
                if hole_ended > began:
                    left.append((began, hole_began))
                    began = hole_ended
            left.append((began, ended))
        return Spans(left)

    def within(self, began: float, ended: float) -> float:
        """How many seconds of these lie between two times."""
        return max(0.0, self._until(ended) - self._until(began))

    def _until(self, at: float) -> float:
        index = bisect_right(self._begins, at) - 1
        if index < 0:
            return 0.0
        began, ended = self.spans[index]
        return self._sums[index] + min(at, ended) - began
