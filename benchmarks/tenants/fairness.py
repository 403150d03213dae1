"""How equal shares are: Jain's index, over windows of a run."""

from collections.abc import Mapping, Sequence
from itertools import accumulate


def jain(shares: Sequence[float]) -> float:
    """1 if all are equal, 1 / their number if one has everything; 0 where nobody has anything.

    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness, 1984.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def least_jain(
    tokens: Mapping[str, Sequence[float]], weights: Mapping[str, float], window: int
) -> float:
    """The worst of all windows. `tokens`: of each tenant, those of each interval.

    Raises: ValueError: the run is shorter than a window.
    """
    sums = {name: list(accumulate(tokens[name], initial=0.0)) for name in weights}
    intervals = len(next(iter(sums.values()))) - 1
    if intervals < window:
        raise ValueError(f"{intervals} intervals have no window of {window}")
    return min(
        jain([(sums[name][end] - sums[name][end - window]) / w for name, w in weights.items()])
        for end in range(window, intervals + 1)
    )
