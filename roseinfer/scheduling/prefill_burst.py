"""A burst of prompts: more requests wait for their first token than decode.

Pacing the prompts beside the few that decode would make the many wait. So they are computed first,
in two halves. The first half has its first tokens early, and waits once for the second half, no
longer than it waited for its first tokens. So all of the burst end about together. A half may take
several steps, see `PrefillPace.together`. Requests that decoded before the burst get a token in
each of them.

Prompts that arrive meanwhile belong to the burst until its second half has begun. Where a burst
would take longer than `MAX_BURST_S` in all, its prompts are paced instead.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from roseinfer.scheduling.step_costs import StepCosts
from roseinfer.sessions.session import InferenceSession

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
