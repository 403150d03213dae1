"""Who runs the work: the engine, and those it is compared with."""

from __future__ import annotations

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


class Contender(ABC):
    name: str
    max_rounds: int | None = None
    """where more would take too long"""

    @abstractmethod
    def run(self, work: Workload) -> Run:
        """All requests at once, greedy, none ends early."""


class Streaming(Contender):
    @abstractmethod
    def intervals(self, prompt: Sequence[int], new_tokens: int) -> list[float]:
        """Seconds between the tokens of one request that is alone: one fewer than tokens."""
