"""What steps cost: seconds by the size of a step, fitted to the steps that were measured.

    seconds = slowdown * (fixed + per_row * rows + per_pair * pairs)

`fixed` is mostly the reading of the weights, `per_row` their product with a token, and `per_pair`
the attention of a query to a key. The last steps of decoding and the last ones with prefill are
kept apart, so that hours of the one do not displace the other.

A measured step may have waited for another program. The fit has the least sum of absolute relative
errors, so a minority of steps hardly moves it, however long they took. `slowdown` is the median of
measured to fitted seconds of the last five steps: two hiccups in a row change nothing, and a
machine that is busy from now on is believed after three steps.

Three views of the same fit: `usual` is without the slowdown, `now` with it, and `next_step`
believes the last step at once if that was slower still.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from roseinfer.sessions.chunk import Chunk
from roseinfer.sessions.session import InferenceSession

_WINDOW = 32  # steps of each kind
_RECENT = 5
_FITTING_PASSES = 5
_MAX_PATIENCE = 500  # steps
_MIN_RESIDUAL = 1e-3  # of a step's seconds: an error below it is none
# Where the steps are too alike to tell the costs apart, the rows cost everything: a step without
# prefill then seems cheap, and the next chunk is small enough to show what is fixed.
_RIDGE = (1e-5, 1e-9, 1e-5)


class StepSize(NamedTuple):
    """`pairs` counts, for each row, the keys that its query attends to."""

    rows: int
    pairs: int

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> StepSize:
        """Before the chunks are counted as computed."""
        rows = pairs = 0
        for chunk in chunks:
            rows += chunk.count
            pairs += _pairs(chunk.session.computed, chunk.count)
        return cls(rows, pairs)


class _Measurement(NamedTuple):
    size: StepSize
    seconds: float


class Costs(NamedTuple):
    """In seconds."""

    fixed: float = 0.0
    per_row: float = 0.0
    per_pair: float = 0.0

    def of(self, size: StepSize) -> float:
        return self.fixed + self.per_row * size.rows + self.per_pair * size.pairs

    def of_tokens(self, count: int, computed: int) -> float:
        """What `count` tokens behind the first `computed` of a sequence add to a step."""
        return self.per_row * count + self.per_pair * _pairs(computed, count)

    def of_prompts(self, sessions: Iterable[InferenceSession]) -> float:
        """What all their tokens that are not computed add to steps."""
        size = StepSize.of(Chunk(session, session.num_pending) for session in sessions)
        return self.of(size) - self.fixed

    def tokens_within(self, seconds: float, computed: int) -> int:
        """How many tokens behind the first `computed` of a sequence add at most `seconds`."""
        # n tokens add n * first + n^2 * growth: each attends to one key more than the last.
        growth = self.per_pair / 2
        first = self.per_row + self.per_pair * (computed + 0.5)
        divisor = first + (first * first + 4 * growth * max(seconds, 0.0)) ** 0.5
        return int(2 * max(seconds, 0.0) / divisor) if divisor > 0 else sys.maxsize

    def scaled(self, factor: float) -> Costs:
        return Costs(self.fixed * factor, self.per_row * factor, self.per_pair * factor)


class StepCosts:
    """Before the first step is measured, everything costs nothing."""

    def __init__(self) -> None:
        self._decodes: deque[_Measurement] = deque(maxlen=_WINDOW)
        self._prefills: deque[_Measurement] = deque(maxlen=_WINDOW)
        self._recent: deque[_Measurement] = deque(maxlen=_RECENT)
        self._fitted = Costs()
        self._recorded = 0
        self._unfitted = 0  # steps that the fit does not know

    def record(self, size: StepSize, seconds: float, *, prefill: bool) -> None:
        """A step of `size` took so long; `prefill`: it was not decoding alone."""
        measured = _Measurement(size, max(seconds, sys.float_info.epsilon))
        (self._prefills if prefill else self._decodes).append(measured)
        self._recent.append(measured)
        self._recorded += 1
        self._unfitted += 1

    def usual(self) -> Costs:
        """However busy the machine is now. After many steps the fit is renewed seldom, unless the
        other views are asked for too."""
        self._fit(patience=min(self._recorded // 2, _MAX_PATIENCE))
        return self._fitted

    def now(self) -> Costs:
        slowdowns = self._slowdowns()
        return self._fitted.scaled(statistics.median(slowdowns))

    def next_step(self) -> Costs:
        """Slow times last for some steps. A chunk that is too large for them is waited for, and one
        that is too small costs little."""
        slowdowns = self._slowdowns()
        return self._fitted.scaled(max(statistics.median(slowdowns), slowdowns[-1]))

    def _slowdowns(self) -> list[float]:
        """Of the last steps, after the fit was renewed. The first steps are fitted one by one,
        later ones after every sixteenth."""
        self._fit(patience=_WINDOW // 2 - 1 if len(self._prefills) > _WINDOW // 2 else 0)
        return [step.seconds / self._fitted.of(step.size) for step in self._recent] or [1.0]

    def _fit(self, patience: int) -> None:
        """A fit takes a millisecond."""
        if self._unfitted > patience:
            self._fitted, self._unfitted = _fit([*self._decodes, *self._prefills]), 0


def _pairs(computed: int, count: int) -> int:
    return count * computed + count * (count + 1) // 2


def _fit(steps: list[_Measurement]) -> Costs:
    """No cost is negative."""
    sizes = torch.tensor([(1, *step.size) for step in steps], dtype=torch.float64)
    seconds = torch.tensor([step.seconds for step in steps], dtype=torch.float64)
    relative = sizes / seconds.unsqueeze(1)  # its rows times the costs are to be 1
    scales = relative.amax(0)
    ridge = torch.tensor(_RIDGE, dtype=torch.float64) * len(steps)
    columns = [0, 1, 2]
    while True:
        solution = _least_absolute(relative[:, columns] / scales[columns], ridge[columns])
        if len(columns) == 1 or bool((solution >= 0).all()):
            break
        del columns[int(solution.argmin())]
    costs = [0.0, 0.0, 0.0]
    for column, value in zip(columns, (solution / scales[columns]).tolist(), strict=True):
        costs[column] = value
    return Costs(*costs)


def _least_absolute(rows: Tensor, ridge: Tensor) -> Tensor:
    """x with the least sum of |rows @ x - 1|: least squares, with weights that make large errors
    count once and not twice."""
    weights = torch.ones(len(rows), dtype=rows.dtype)
    for _ in range(_FITTING_PASSES):
        weighted = rows.T * weights
        solution: Tensor = torch.linalg.solve(weighted @ rows + ridge.diag(), weighted.sum(1))
        weights = 1 / (rows @ solution - 1).abs().clamp_(min=_MIN_RESIDUAL)
    return solution
