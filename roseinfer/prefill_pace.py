"""How many tokens of prompts stand in a step beside requests that decode.

Each of them makes all who decode wait a little longer for their next token. So there are as many as
the target for that wait pays for, by the measured costs. With nobody decoding, steps are as large
as they may be.

A crowd of prompts, with few or nobody decoding, is computed in larger steps than usual, but none of
more than three seconds. Prompts that came together then decode together, and the last one of them
waits least. In small steps the first ones would be held up, again and again, for the sake of the
next.

What this costs a prompt is bounded. Whatever the target, a step with prefill spends at least as
much time on it as on decoding: the first token takes at most twice as long as the prompt's chunks
by themselves. And it has at least `LEAST_TOKENS`, whatever the clock said.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from roseinfer.batch import Chunk
from roseinfer.session import InferenceSession
from roseinfer.step_costs import StepCosts, StepSize

LEAST_TOKENS = 16

# Seconds of prefill for each second of decoding. The usual one makes a step with prefill three
# times as long as one without, and leaves room for estimates that are wrong: four times is too
# long.
_LEAST_SHARE = 1.0
_USUAL_SHARE = 2.0

# So many prompts are a crowd where no more requests decode.
_CROWD = 8
# How many times the usual step it gets, and for how long.
_CROWD_STEPS = 4
_CROWD_STEP_S = 3.0


class PrefillPace:
    """`target_s` is for the time between two tokens of a request. 0 is no target. None is the
    usual one: three times what a decode step takes.

    That is for one prompt. Each further one that is being computed weighs as much as a request that
    decodes, and a crowd is not paced at all: 28 are not held up for the sake of 4, and the batch
    fills soon.
    """

    def __init__(self, costs: StepCosts, target_s: float | None) -> None:
        self._costs, self._target_s = costs, target_s

    def chunks(
        self,
        prefilling: Sequence[InferenceSession],
        decoding: Sequence[InferenceSession],
        budget: int,
    ) -> list[Chunk]:
        """The next tokens of `prefilling`, oldest first, at most `budget`; of a crowd at most
        four times as many."""
        left_s, least = inf, 0  # of prefill: at most so many seconds, but at least so many tokens
        if self._is_crowd(prefilling, decoding):
            left_s, least = _CROWD_STEP_S - self._decode_s(decoding), budget
            budget *= _CROWD_STEPS if self._costs.known else 1
        elif decoding and prefilling and self._target_s != 0:
            left_s, least = self._seconds(prefilling, decoding), LEAST_TOKENS
        chunks = list[Chunk]()
        for session in prefilling:
            count = min(session.num_pending, budget)
            if left_s < inf:
                affordable = self._costs.tokens_within(left_s, session.computed)
                count = min(count, max(affordable, least))
                left_s -= self._costs.of_tokens(count, session.computed)
                least -= count
            if count <= 0:
                break
            chunks.append(Chunk(session, count))
            budget -= count
        return chunks

    def _is_crowd(
        self, prefilling: Sequence[InferenceSession], decoding: Sequence[InferenceSession]
    ) -> bool:
        return self._target_s is None and len(prefilling) >= max(_CROWD, len(decoding))

    def _decode_s(self, decoding: Sequence[InferenceSession]) -> float:
        """What the next step would take without prefill."""
        keys = sum(session.num_known for session in decoding)
        return self._costs.of_step(StepSize(len(decoding), keys))

    def _seconds(
        self, prefilling: Sequence[InferenceSession], decoding: Sequence[InferenceSession]
    ) -> float:
        """Of prefill, in the next step."""
        decode_s = self._decode_s(decoding)
        if self._target_s is None:
            crowd = 1 + (len(prefilling) - 1) / len(decoding)
            return decode_s * _USUAL_SHARE * crowd
        return max(self._target_s - decode_s, decode_s * _LEAST_SHARE)
