"""How often drafts turn out to be right."""

from collections.abc import Iterable

_PRIOR_WEIGHT = 4.0  # as so many answers
_DECAY = 0.9  # what an answer still weighs after the next one


class AcceptanceRate:
    """An exponentially weighted mean of answers."""

    __slots__ = ("_accepted", "_weight", "value")

    def __init__(self, prior: float) -> None:
        self.value = prior
        self._accepted, self._weight = prior * _PRIOR_WEIGHT, _PRIOR_WEIGHT

    def record(self, accepted: bool) -> None:
        self._accepted = self._accepted * _DECAY + accepted
        self._weight = self._weight * _DECAY + 1
        self.value = self._accepted / self._weight

    def drift(self, to: float, share: float) -> None:
        """Without an answer: part of the way back."""
        self._accepted += (to * self._weight - self._accepted) * share
        self.value = self._accepted / self._weight


def probabilities(rates: Iterable[float], least: float) -> list[float]:
    """That the first 1, 2, ... drafts are all accepted, down to `least`."""
    found = list[float]()
    probability = 1.0
    for rate in rates:
        probability *= rate
        if probability < least:
            break
        found.append(probability)
    return found
