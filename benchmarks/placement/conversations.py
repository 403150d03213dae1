"""Conversations that go on at once, each turn as soon as the one before is answered."""

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rose.errors import JobFailed
from rose_producer import AsyncClient, FinishedEvent

_TEXT = (
    "the boat of a fox was old and its sail had a hole so they took the red cloth from a box and "
    "sewed it by the light that came through one small window over the sea where birds slept"
)
_WORDS = _TEXT.split(" ")


@dataclass(frozen=True, slots=True)
class Trace:
    """`system_words`: of the beginning that all share; `turn_words`: of each question; `tokens`: of
    each answer. `salt`: another for each measurement, so that none finds what another has left."""

    conversations: int
    turns: int
    system_words: int
    turn_words: int
    tokens: int
    alike: bool = True
    """False: nothing is said again, so there is nothing to find in a cache."""

    def system(self) -> str:
        return _text("system", self.system_words)

    def question(self, conversation: int, turn: int, salt: str) -> str:
        return _text(f"{salt}/{conversation}/{turn}", self.turn_words)


def _text(seed: str, words: int) -> str:
    source = random.Random(seed)  # noqa: S311 - a workload, no secret
    return " ".join(source.choices(_WORDS, k=words))


@dataclass(slots=True)
class Outcome:
    """Of all turns. `later`: without each conversation's first turn."""

    first_token_s: list[float] = field(default_factory=list)
    later_first_token_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the later turns' prompt tokens that came from a cache."""
        return self.cached_tokens / max(1, self.prompt_tokens)


async def converse(settings: Mapping[str, Any], trace: Trace, salt: str) -> Outcome:
    """Raises: JobFailed"""
    outcome = Outcome()
    async with AsyncClient(**settings) as client:
        await client.submit("x", max_new_tokens=1)  # it knows what the workers do from now on
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(trace.conversations):
                group.create_task(_converse(client, trace, number, salt, outcome))
        outcome.seconds = time.perf_counter() - began
    return outcome


async def _converse(
    client: AsyncClient, trace: Trace, number: int, salt: str, outcome: Outcome
) -> None:
    messages = [{"role": "system", "content": trace.system()}]
    for turn in range(trace.turns):
        if not trace.alike:
            messages = [{"role": "system", "content": trace.question(number, -turn - 1, salt)}]
        messages.append({"role": "user", "content": trace.question(number, turn, salt)})
        began = time.perf_counter()
        first, answer = None, ""
        job = await client.submit(
            messages, max_new_tokens=trace.tokens, ignore_eos=True, cache_salt=salt
        )
        async for event in job.stream():
            if event.type == "tokens":
                first = first or time.perf_counter()
                answer += event.text
                outcome.tokens += len(event.token_ids)
            elif not isinstance(event, FinishedEvent):
                raise JobFailed(f"{job.id} has {event.type}")
            elif turn:
                outcome.prompt_tokens += event.prompt_tokens
                outcome.cached_tokens += event.cached_tokens or 0
        waited_s = (first or time.perf_counter()) - began
        outcome.first_token_s.append(waited_s)
        if turn:
            outcome.later_first_token_s.append(waited_s)
        messages.append({"role": "assistant", "content": answer})
