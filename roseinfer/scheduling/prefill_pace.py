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

from collections.abc import Sequence

from roseinfer.scheduling.prefill_burst import PrefillBurst, Turn
from roseinfer.scheduling.step_costs import Costs, StepCosts, StepSize
from roseinfer.sessions.chunk import Chunk
from roseinfer.sessions.session import InferenceSession

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
