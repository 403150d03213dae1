"""Conversations that go on at once, each turn as soon as the one before is answered. In bursts the
turns of all come together."""

import asyncio
import random
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
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
    bursts: bool = False
    """Turns come together."""

    def system(self) -> str:
        return text_of("system", self.system_words)

    def question(self, conversation: int, turn: int, salt: str) -> str:
        return text_of(f"{salt}/{conversation}/{turn}", self.turn_words)


def text_of(seed: str, words: int) -> str:
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


class Router:
    """Who gets a turn, as routers do it that push: each worker has a queue of its own."""

    def __init__(self, clients: Sequence[AsyncClient], how: str) -> None:
        """`how`: "least" for the one with the fewest turns, "hashed" for one chosen by the
        conversation; with one client all the same."""
        self._clients, self._how = clients, how
        self._busy = [0] * len(clients)

    def choose(self, conversation: int) -> int:
        if self._how == "hashed":
            return zlib.crc32(str(conversation).encode()) % len(self._clients)
        return self._busy.index(min(self._busy))

    async def say(self, conversation: "_Conversation", turn: int) -> None:
        index = self.choose(conversation.number)
        self._busy[index] += 1
        try:
            await conversation.say(self._clients[index], turn)
        finally:
            self._busy[index] -= 1


async def converse(
    settings: Mapping[str, Any],
    trace: Trace,
    salt: str,
    *,
    queues: Sequence[str] = ("",),
    how: str = "",
) -> Outcome:
    """`queues` beside that of the settings, and `how` turns are routed to them.

    Raises: JobFailed
    """
    outcome = Outcome()
    async with AsyncExitStack() as stack:
        named = [{"queue": queue} if queue else {} for queue in queues]
        clients = [
            await stack.enter_async_context(AsyncClient(**{**settings, **name})) for name in named
        ]
        for client in clients:  # it knows what the workers do from now on
            await client.submit("x", max_new_tokens=1)
        router = Router(clients, how)
        conversations = [
            _Conversation(trace, number, salt, outcome) for number in range(trace.conversations)
        ]

        async def say(conversation: _Conversation, turns: Sequence[int]) -> None:
            for turn in turns:
                await router.say(conversation, turn)

        rounds = [[turn] for turn in range(trace.turns)] if trace.bursts else [range(trace.turns)]
        began = time.perf_counter()
        for turns in rounds:
            async with asyncio.TaskGroup() as group:
                for conversation in conversations:
                    group.create_task(say(conversation, turns))
        outcome.seconds = time.perf_counter() - began
    return outcome


@dataclass(slots=True)
class _Conversation:
    trace: Trace
    number: int
    salt: str
    outcome: Outcome
    messages: list[dict[str, str]] = field(default_factory=list)

    async def say(self, client: AsyncClient, turn: int) -> None:
        trace, outcome = self.trace, self.outcome
        if not trace.alike:
            text = trace.question(self.number, -turn - 1, self.salt)
            self.messages = [{"role": "system", "content": text}]
        elif turn == 0:
            self.messages = [{"role": "system", "content": trace.system()}]
        question = trace.question(self.number, turn, self.salt)
        self.messages.append({"role": "user", "content": question})
        began = time.perf_counter()
        first, answer = None, ""
        job = await client.submit(
            self.messages, max_new_tokens=trace.tokens, ignore_eos=True, cache_salt=self.salt
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
        self.messages.append({"role": "assistant", "content": answer})
