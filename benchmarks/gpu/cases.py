"""What is measured on a GPU, beside what benchmarks.engine has."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.board import Board, at_least
from benchmarks.engine.cases.batch import METRIC as RATE
from benchmarks.engine.cases.batch import Batch, compare
from benchmarks.engine.contenders import Contender
from benchmarks.engine.contenders.transformers import Continuous
from benchmarks.gpu.ours import OursOnDevice
from benchmarks.gpu.scale import Scale
from benchmarks.limits import Limits
from benchmarks.workload import Workload, random_prompt

_SEED = 0
COMPUTE_SHARE = "share of the compute limit"
MEMORY_SHARE = "share of the memory limit"
BUSY = "share of time in which the device works"
_KERNELS = 10
_MIN_MEMORY_SHARE, _MIN_BUSY, _MIN_TO_CONTINUOUS = 0.85, 0.95, 3


def nano_vllm(scale: Scale, vocabulary: int, turn: int) -> Workload:
    """nano-vllm's workload: so many tokens in and out, drawn evenly; lengths by a fixed seed."""
    lengths = random.Random(_SEED)  # noqa: S311 - a workload, no secret
    sizes = [
        (lengths.randint(*scale.lengths), lengths.randint(*scale.lengths))
        for _ in range(scale.requests)
    ]
    prompts = [random_prompt(n, vocabulary, f"nano/{turn}/{i}") for i, (n, _) in enumerate(sizes)]
    return Workload(prompts, [count for _, count in sizes])


class Nano(Batch):
    """Everybody nano-vllm's workload at once."""

    def __init__(
        self,
        title: str,
        contenders: Sequence[Contender],
        scale: Scale,
        vocabulary: int,
        parameters: int,
        limits: Limits,
    ) -> None:
        """`parameters` take part in a token's products: two operations each."""
        super().__init__(title, contenders, vocabulary, scale.requests, scale.lengths[1])
        self._scale, self._parameters, self._limits = scale, parameters, limits

    def work(self, turn: int) -> Workload:
        return nano_vllm(self._scale, self._vocabulary, turn)

    def round(self, board: Board, turn: int) -> None:
        super().round(board, turn)
        work = self.work(turn)
        tokens = sum(map(len, work.prompts)) + work.tokens
        for contender in self._contenders:
            rates = board.rows.get((RATE, contender.name), [])
            if len(rates) > max(turn, 0):
                speed = 2 * self._parameters * tokens * rates[-1] / work.tokens
                share = speed / self._limits.compute
                board.add(contender.name, {COMPUTE_SHARE: share})

    def judge(self, board: Board) -> None:
        compare(board, RATE, {Continuous.name: _MIN_TO_CONTINUOUS})


class Decode:
    """One request by itself, at several contexts: a token reads all weights, and its own KV."""

    def __init__(
        self,
        title: str,
        ours: OursOnDevice,
        contexts: Sequence[int],
        new_tokens: int,
        weight_bytes: int,
        limits: Limits,
    ) -> None:
        self.title = title
        self._ours, self._contexts, self._new_tokens = ours, contexts, new_tokens
        self._weight_bytes, self._limits = weight_bytes, limits
        cache = ours.engine.cache
        stores = [*cache.keys, *cache.values]
        self._bytes_per_token = sum(s[0].numel() * s.element_size() for s in stores)

    def round(self, board: Board, turn: int) -> None:
        for context in self._contexts:
            prompt = random_prompt(context, self._ours.engine.vocab_size, f"decode/{turn}")
            intervals = self._ours.intervals(prompt, self._new_tokens)
            rate = len(intervals) / sum(intervals)
            read = self._weight_bytes + context * self._bytes_per_token
            share = rate * read / self._limits.memory
            board.add(f"{context:,} tokens", {"decode, tokens/s": rate, MEMORY_SHARE: share})

    def judge(self, board: Board) -> None:
        row = MEMORY_SHARE, f"{self._contexts[0]:,} tokens"
        board.check_figure(row, at_least(_MIN_MEMORY_SHARE))


class Busy:
    """How much of the time the device works while a full batch is decoded, and at what."""

    def __init__(self, title: str, ours: OursOnDevice, sequences: int, steps: int) -> None:
        self.title = title
        self._ours, self._sequences, self._steps = ours, sequences, steps

    def round(self, board: Board, turn: int) -> None:
        vocabulary = self._ours.engine.vocab_size
        prompts = [
            random_prompt(64, vocabulary, f"busy/{turn}/{n}") for n in range(self._sequences)
        ]
        profile = self._ours.profile(prompts, self._steps)
        if profile is not None:
            board.add(self._ours.name, {BUSY: profile.busy})
            for share, name in profile.kernels[:_KERNELS] if turn == 0 else ():
                board.notes.append(f"{share:.1%} of its work: {name[:60]}")

    def judge(self, board: Board) -> None:
        board.check_figure((BUSY, self._ours.name), at_least(_MIN_BUSY))
