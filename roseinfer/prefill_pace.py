"""How many tokens of prompts stand in a step beside requests that decode.

Each of them makes all who decode wait a little longer for their next token. So there are as many as
the target for that wait pays for, by the measured costs. With nobody decoding, steps are as large
as they may be.

What this costs a prompt is bounded. Whatever the target, a step with prefill spends at least as
much time on it as on decoding: the first token takes at most twice as long as the prompt's chunks
by themselves. And it has at least `LEAST_TOKENS`, whatever the clock said.
"""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.batch import Chunk
from roseinfer.session import InferenceSession
from roseinfer.step_costs import StepCosts, StepSize

LEAST_TOKENS = 16

# Seconds of prefill for each second of decoding. The usual one makes a step with prefill three
# times as long as one without, and leaves room for estimates that are wrong: four times is too
# long.
_LEAST_SHARE = 1.0
_USUAL_SHARE = 2.0


class PrefillPace:
    """`target_s` is for the time between two tokens of a request. 0 is no target. None is the
    usual one: three times what a decode step takes.

    That is for one prompt. Each further one that is being computed weighs as much as a request that
    decodes, so 28 are not held up for the sake of 4, and the batch fills soon.
    """

    def __init__(self, costs: StepCosts, target_s: float | None) -> None:
        self._costs, self._target_s = costs, target_s

    def chunks(
        self,
        prefilling: Sequence[InferenceSession],
        decoding: Sequence[InferenceSession],
        budget: int,
    ) -> list[Chunk]:
        """The next tokens of `prefilling`, oldest first, at most `budget`."""
        free = not decoding or self._target_s == 0
        left_s = 0.0 if free or not prefilling else self._seconds(prefilling, decoding)
        least, chunks = LEAST_TOKENS, list[Chunk]()
        for session in prefilling:
            count = min(session.num_pending, budget)
            if not free:
                affordable = self._costs.tokens_within(left_s, session.computed)
                count = min(count, max(affordable, least))
                left_s -= self._costs.of_tokens(count, session.computed)
                least -= count
            if count <= 0:
                break
            chunks.append(Chunk(session, count))
            budget -= count
        return chunks

    def _seconds(
        self, prefilling: Sequence[InferenceSession], decoding: Sequence[InferenceSession]
    ) -> float:
        """Of prefill, in the next step."""
        keys = sum(session.num_known for session in decoding)
        decode_s = self._costs.of_step(StepSize(len(decoding), keys))
        if self._target_s is None:
            crowd = 1 + (len(prefilling) - 1) / len(decoding)
            return decode_s * _USUAL_SHARE * crowd
        return max(self._target_s - decode_s, decode_s * _LEAST_SHARE)
