"""Clocks that tests give a scheduler: what a step takes is theirs to say."""

import random
from collections.abc import Sequence

import pytest

from roseinfer import InferenceEngine
from roseinfer.execution.engine_core import StepLogits
from roseinfer.sampling.sampler import SampledTokens
from roseinfer.scheduling.prefill_pace import StepSize
from roseinfer.sessions.session import Chunk


class ErraticClock:
    """Steps take anything from a millisecond to a minute, whatever they compute."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 10 ** self._random.uniform(-3, 2)
        return self._now


class Machine:
    """Goes on by what a step costs on a processor that was measured: a Llama of 135M, two cores.

    `slowdown` makes all of it slower from now on. `steps` are the chunks' lengths, step by step.
    """

    def __init__(self, engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slowdown = 0.0, 1.0
        self.steps: list[list[int]] = []
        self._forward = engine.forward
        monkeypatch.setattr(engine, "forward", self._compute)

    def clock(self) -> float:
        return self.now

    @staticmethod
    def seconds(size: StepSize) -> float:
        """Decoding is bound by memory up to about a dozen rows."""
        return max(0.0095, 0.0045 + 0.0009 * size.rows) + 0.7e-6 * size.pairs

    @classmethod
    def prompt_seconds(cls, tokens: int) -> float:
        """What so many tokens of prompts take in one step, their attention aside."""
        return cls.seconds(StepSize(tokens, 0))

    def _compute(self, chunks: Sequence[Chunk], after: SampledTokens | None = None) -> StepLogits:
        self.now += self.slowdown * self.seconds(StepSize.of(chunks))
        self.steps.append([chunk.count for chunk in chunks])
        return self._forward(chunks, after)
