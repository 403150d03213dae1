"""The prefill budget of a step: how many prompt tokens it computes beside requests that decode.

Each prompt token delays the next token of every decoding request. So a step has as many as the
target inter-token latency allows, by the measured costs of steps. Where no request decodes, steps
are as large as they may be. Where more prompts wait than requests decode, the prompts come first:
see `PrefillBurst`.

What this costs a prompt is bounded. Whatever the target, a step with prefill spends at least as
much time on it as on decoding: the first token takes at most twice as long as the prompt's chunks
by themselves. And it has at least `MIN_PREFILL_TOKENS`, whatever was measured.

A target in decode steps means steps as they usually are. Where the machine is slower for a while,
steps have fewer prompt tokens, but spend at least half as much time on them as on decoding.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from roseinfer.sessions.session import Chunk, InferenceSession

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
            count = chunk.count
            rows += count
            if count == 1:  # as of nearly all
                pairs += chunk.session.computed + 1
            else:
                pairs += _pairs(chunk.session.computed, count)
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


#: No request waits for longer between two tokens; half as long where all prompts come at once.
MAX_BURST_S = 3.0


class Turn(NamedTuple):
    """Which requests take part in a step."""

    prefilling: Sequence[InferenceSession]
    held: Collection[InferenceSession] = ()
    """could decode, and wait for the rest of their burst"""
    paced: bool = True
    """whether prefill leaves room for decoding requests"""


class PrefillBurst:
    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._members: set[InferenceSession] = set()
        self._members_s = 0.0
        """seconds that its members' prompts take, computed ones included"""
        self._second_half = False

    def turn(
        self,
        prefilling: Sequence[InferenceSession],
        decoding: Sequence[InferenceSession],
        paced_s: float,
    ) -> Turn | None:
        """None: there is no burst, or none any more. Prompts that take at most `paced_s` are none:
        they fit a step beside the decoding requests."""
        self._members.intersection_update([*prefilling, *decoding])
        part = [session for session in prefilling if session in self._members]
        if self._second_half and not part:
            self.end()
        held = {session for session in decoding if session in self._members}
        others = [session for session in prefilling if session not in self._members]
        whole_s = self._members_s + self._costs.now().of_prompts(others)
        more_wait = len(prefilling) > len(decoding) - len(held)
        if not more_wait or not paced_s < whole_s <= MAX_BURST_S:
            self.end()
            return None
        return Turn(part or self._next_part(prefilling, len(held)), held, paced=False)

    def end(self) -> None:
        self._members.clear()
        self._members_s, self._second_half = 0.0, False

    def _next_part(
        self, prefilling: Sequence[InferenceSession], begun: int
    ) -> Sequence[InferenceSession]:
        """As many as make half of the burst; when half of it has begun, the rest."""
        self._second_half = begun >= len(prefilling)
        half = -(-(begun + len(prefilling)) // 2)
        part = prefilling if self._second_half else prefilling[: half - begun]
        self._members.update(part)
        self._members_s += self._costs.now().of_prompts(part)
        return part


MIN_PREFILL_TOKENS = 16

# Seconds of prefill, at least, for each second of decoding.
_MIN_PREFILL_SHARE = 1.0
# With the default target, which leaves more of it at the usual speed. Slow times pass.
_MIN_PREFILL_SHARE_IN_SLOW_TIMES = 0.5

# The default target, in decode steps of all requests. It leaves room for wrong estimates: four
# times is too long.
_DEFAULT_TARGET_STEPS = 2.25

# A full step has more tokens than these only where it takes no longer than that: a request that
# arrives or is cancelled meanwhile waits for its end.
_FULL_TOKENS, _FULL_S = 512, 1.0

# A prompt with one token left counts as decoding.
_LEFT_TOKENS = 2


class PrefillPace:
    """`target_s` is the inter-token latency to aim at. 0 is no target. None is the default: 2.25
    times what a step takes in which all requests decode, those in prefill as well.

    So while few requests decode and many are in prefill, the few wait as long for a token as they
    will among many, and the batch fills soon. There are bursts only with the default target.
    """

    def __init__(self, costs: StepCosts, target_s: float | None) -> None:
        self._costs, self._target_s = costs, target_s
        self._burst = PrefillBurst(costs)

    def turn(
        self, prefilling: Sequence[InferenceSession], decoding: Sequence[InferenceSession]
    ) -> Turn:
        """Which prompts are next, and which requests are held back for them."""
        if self._target_s is None and prefilling:
            paced_s = self._seconds(self._costs.now(), prefilling, decoding)
            turn = self._burst.turn(prefilling, decoding, paced_s)
            if turn is not None:
                return turn
        self._burst.end()
        return Turn(prefilling)

    def chunks(
        self,
        prefilling: Sequence[InferenceSession],
        decoding: Sequence[InferenceSession],
        budget: int,
    ) -> list[Chunk]:
        """The next tokens of `prefilling`, oldest first, at most `budget`, beside `decoding`."""
        if not prefilling:
            return []
        if self._target_s == 0:
            return _in_order(prefilling, budget)
        if not decoding:
            return _in_order(prefilling, min(budget, self._full_step(prefilling)))
        costs, least, chunks = self._costs.next_step(), MIN_PREFILL_TOKENS, list[Chunk]()
        left_s = self._seconds(costs, prefilling, decoding)
        for session in prefilling:
            affordable = max(costs.tokens_within(left_s, session.computed), least)
            count = min(session.num_pending, budget, affordable)
            if count <= 0:
                break
            chunks.append(Chunk(session, count))
            budget -= count
            left_s -= costs.of_tokens(count, session.computed)
            least -= count
        return chunks

    def together(self, prefilling: Sequence[InferenceSession], budget: int) -> list[Chunk]:
        """The next tokens of a part of a burst. Its prompts end in the same step, also where they
        take several: a request with an early first token waits for the others anyway. So a little
        of each prompt is left until the rest fits. Where a step holds not even two prompts that
        would be too late for the first ones, and they end one after another."""
        budget = min(budget, self._full_step(prefilling))
        tokens = sum(session.num_pending for session in prefilling)
        chunks = list[Chunk]()
        if budget < tokens <= budget * len(prefilling) / 2:
            chunks = _in_order(prefilling, budget, leave=_LEFT_TOKENS)
        return chunks or _in_order(prefilling, budget)

    def _full_step(self, prefilling: Sequence[InferenceSession]) -> int:
        """Tokens of a step that delays no decoding request."""
        tokens = self._costs.now().tokens_within(_FULL_S, prefilling[0].computed)
        return max(tokens, _FULL_TOKENS)

    def _seconds(
        self,
        costs: Costs,
        prefilling: Sequence[InferenceSession],
        decoding: Sequence[InferenceSession],
    ) -> float:
        """Seconds of prefill in a step, where steps cost that."""
        decode_s = costs.of(_decode_step(decoding))
        if self._target_s is None:
            together_s = self._costs.usual().of(_decode_step([*decoding, *prefilling]))
            target_s, share = together_s * _DEFAULT_TARGET_STEPS, _MIN_PREFILL_SHARE_IN_SLOW_TIMES
        else:
            target_s, share = self._target_s, _MIN_PREFILL_SHARE
        return max(target_s - decode_s, decode_s * share)


def _in_order(prefilling: Sequence[InferenceSession], budget: int, leave: int = 0) -> list[Chunk]:
    """As many tokens of the first ones as there is room for, all but the last `leave` of each."""
    chunks = list[Chunk]()
    for session in prefilling:
        count = min(session.num_pending - leave, budget)
        if count > 0:
            chunks.append(Chunk(session, count))
            budget -= count
    return chunks


def _decode_step(sessions: Sequence[InferenceSession]) -> StepSize:
    return StepSize(len(sessions), sum(session.num_known for session in sessions))
