"""Prompts that come together: more of them wait for a first token than others decode.

To pace them beside the few who decode would make the many wait. So they are computed first, in
halves: those of the first half have their first token early, and wait once for the second half
before they go on. That takes them no longer than they waited for their first token, and all of the
burst end about together. A half may take several steps, see `PrefillPace.together`. Those who
decoded before the burst get a token in each of them.

Prompts that come meanwhile belong to the burst until its second half has begun. One that would take
longer than `MAX_BURST_S` in all is none: its prompts are paced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from roseinfer.scheduling.step_costs import StepCosts
from roseinfer.sessions.session import InferenceSession

#: Nobody waits for longer between two tokens, and for half as long where all prompts come at once.
MAX_BURST_S = 3.0


class Turn(NamedTuple):
    """Who takes part in a step."""

    prefilling: Sequence[InferenceSession]
    held: Collection[InferenceSession] = ()
    """they could decode, and wait for the rest of their burst"""
    paced: bool = True
    """beside those who decode"""


class PrefillBurst:
    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._members: set[InferenceSession] = set()
        self._members_s = 0.0
        """what the prompts of its members take, whether they are computed or not"""
        self._second_half = False

    def turn(
        self,
        prefilling: Sequence[InferenceSession],
        decoding: Sequence[InferenceSession],
        beside_s: float,
    ) -> Turn | None:
        """None: there is no burst, or none any more. Prompts that take at most `beside_s` are none:
        they can be computed beside those who decode."""
        self._members.intersection_update([*prefilling, *decoding])
        part = [session for session in prefilling if session in self._members]
        if self._second_half and not part:
            self.end()
        held = {session for session in decoding if session in self._members}
        others = [session for session in prefilling if session not in self._members]
        whole_s = self._members_s + self._costs.of_prompts(others)
        more_wait = len(prefilling) > len(decoding) - len(held)
        if not more_wait or not beside_s < whole_s <= MAX_BURST_S:
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
        self._members_s += self._costs.of_prompts(part)
        return part
