"""Who runs the work: the engine, and those it is compared with."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.workload import Workload


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a workload. `complete` False: stopped at the limit of time."""

    seconds: float
    outputs: Sequence[Sequence[int]]
    complete: bool = True

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids in self.outputs)

    @property
    def rate(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.seconds

    def check(self, work: Workload, name: str) -> None:
        """Raises: RuntimeError: not what was asked for."""
        got = [len(ids) for ids in self.outputs]
        if self.complete and got != work.new_tokens:
            raise RuntimeError(f"{name} made {sum(got)} tokens, {work.tokens} were asked for")


@dataclass(frozen=True, slots=True)
class Traffic:
    """`decoding` are prompts that ask for `new_tokens` each, all at once. Whenever the first of
    them has made `every` tokens more, the next of `arriving` comes, which asks for one token."""

    decoding: list[list[int]]
    new_tokens: int
    arriving: list[list[int]]
    every: int

    @property
    def tokens(self) -> int:
        return len(self.decoding) * self.new_tokens + len(self.arriving)


@dataclass(frozen=True, slots=True)
class Course:
    """What traffic brought. In seconds: all of it, what processors worked, the time between two
    tokens of those who decode, and from an arrival to its token."""

    seconds: float
    cpu_seconds: float
    intervals: Sequence[float]
    first_tokens: Sequence[float]


class Contender(ABC):
    name: str
    max_rounds: int | None = None
    """where more would take too long"""

    @abstractmethod
    def run(self, work: Workload) -> Run:
        """All requests at once, greedy, none ends early."""


class Streaming(Contender):
    @abstractmethod
    def token_times(self, prompt: Sequence[int], new_tokens: int) -> list[float]:
        """Seconds from a request that is alone to each of its tokens."""

    def intervals(self, prompt: Sequence[int], new_tokens: int) -> list[float]:
        """Seconds between its tokens: one fewer than tokens."""
        times = self.token_times(prompt, new_tokens)
        return [later - sooner for sooner, later in itertools.pairwise(times)]
