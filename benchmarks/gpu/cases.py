"""What is measured on a GPU, and how much, beside what benchmarks.engine has."""

import gc
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile

from benchmarks.board import Board, at_least
from benchmarks.engine import scale as engine_scale
from benchmarks.engine.cases.beside_peers import METRIC as RATE
from benchmarks.engine.cases.beside_peers import Batch, compare
from benchmarks.engine.contenders.ours import Ours, exactly
from benchmarks.engine.contenders.transformers import Continuous
from benchmarks.limits import Limits, synchronize
from benchmarks.runner import Case
from benchmarks.workload import Workload, random_prompt
from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.checkpoints.tokenizer import load_tokenizer
from roseinfer.demo_model import MODEL_PATH
from roseinfer.gpu.options import GpuOptions

_SEED = 0
COMPUTE_SHARE = "share of the compute limit"
MEMORY_SHARE = "share of the memory limit"
BUSY = "share of time in which the device works"
_KERNELS = 10
_MIN_MEMORY_SHARE, _MIN_BUSY, _MIN_TO_CONTINUOUS = 0.85, 0.95, 3


@dataclass(frozen=True, slots=True)
class Scale(engine_scale.Scale):
    rounds: int = 2
    requests: int = 256
    min_tokens: int = 100
    max_tokens: int = 1024
    """of prompts and of answers"""
    max_batch_size: int = 256
    max_step_tokens: int = 8192
    contexts: tuple[int, ...] = (128, 8_192, 32_768)
    single_tokens: int = 257
    busy_sequences: int = 256
    busy_steps: int = 50
    static_batch: int = 128
    """requests that `generate` takes at once: what its padded cache has room for"""
    limit_s: float = 15
    """of a round of a peer"""
    kv_cache_tokens: int | None = None
    memory_utilization: float = 0.42
    """for the engine; peers and the service need the rest"""
    sum_elements: int = 2**30
    matrix_width: int = 8192


FULL = Scale()
SMOKE = Scale(
    rounds=1,
    requests=3,
    min_tokens=2,
    max_tokens=4,
    max_batch_size=4,
    max_step_tokens=64,
    contexts=(4, 12),
    single_tokens=2,
    busy_sequences=1,
    busy_steps=2,
    static_batch=2,
    limit_s=30,
    kv_cache_tokens=512,
    sum_elements=2**16,
    matrix_width=64,
    first_tokens=1,
)


class Profile(NamedTuple):
    busy: float
    """the share of time in which the device works"""
    kernels: list[tuple[float, str]]
    """the share of that for each kernel, by name, largest first"""


class OursOnDevice(Ours):
    def __init__(self, model: Any, gpu: GpuOptions, kv_cache_tokens: int | None) -> None:
        self.engine = InferenceEngine.from_model(
            model, load_tokenizer(str(MODEL_PATH)), gpu=gpu, kv_cache_tokens=kv_cache_tokens
        )
        self._limits = gpu.max_batch_size, gpu.max_step_tokens
        gc.freeze()  # as a worker does

    def scheduler(
        self, itl_target_ms: float | None = None, *, speculation: bool = False
    ) -> OnlineScheduler:
        # Without a GPU the service's smoke run is served by the compiled decoder, which cannot.
        overlap = self.engine.runs_ahead
        return OnlineScheduler(
            self.engine,
            *self._limits,
            keep_finished=False,
            overlap=overlap,
            itl_target_ms=itl_target_ms,
            speculation=speculation,
        )

    def profile(self, prompts: Sequence[Sequence[int]], steps: int) -> Profile | None:
        """Profiles the device while all `prompts` are being decoded; None without a GPU.

        Its work is on one stream, so it is the sum of what its kernels and copies take. The
        profiler slows the host down, so the share without it is higher.
        """
        scheduler = self.scheduler()
        for prompt in prompts:
            scheduler.add_request(prompt, params=exactly(2 * steps + 1000))
        while scheduler.stats().generated_tokens < 4 * len(prompts):
            scheduler.step()
        synchronize(self.engine.device)
        if self.engine.device.type != "cuda":
            scheduler.step()
            return None
        with profile(activities=[ProfilerActivity.CUDA]) as events:
            began = time.perf_counter()
            for _ in range(steps):
                scheduler.step()
            synchronize(self.engine.device)
            seconds = time.perf_counter() - began
        spent = {event.key: event.self_device_time_total / 1e6 for event in events.key_averages()}
        busy = sum(spent.values())
        kernels = sorted(((time / busy, name) for name, time in spent.items()), reverse=True)
        return Profile(busy / seconds, kernels)


def nano_vllm(scale: Scale, vocabulary: int, turn: int) -> Workload:
    """nano-vllm's workload: so many tokens in and out, drawn evenly; lengths by a fixed seed."""
    lengths = random.Random(_SEED)  # noqa: S311 - a workload, no secret
    limits = scale.min_tokens, scale.max_tokens
    sizes = [(lengths.randint(*limits), lengths.randint(*limits)) for _ in range(scale.requests)]
    prompts = [random_prompt(n, vocabulary, f"nano/{turn}/{i}") for i, (n, _) in enumerate(sizes)]
    return Workload(prompts, [count for _, count in sizes])


@dataclass
class Nano(Batch):
    """Everybody nano-vllm's workload at once."""

    scale: Scale
    parameters: int
    """that take part in a token's products: two operations each"""
    limits: Limits

    def work(self, turn: int) -> Workload:
        return nano_vllm(self.scale, self.vocabulary, turn)

    def round(self, board: Board, turn: int) -> None:
        super().round(board, turn)
        work = self.work(turn)
        tokens = sum(map(len, work.prompts)) + work.tokens
        for contender in self.contenders:
            rates = board.rows.get((RATE, contender.name), [])
            if len(rates) > max(turn, 0):
                speed = 2 * self.parameters * tokens * rates[-1] / work.tokens
                share = speed / self.limits.compute
                board.add(contender.name, {COMPUTE_SHARE: share})

    def judge(self, board: Board) -> None:
        compare(board, RATE, {Continuous.name: _MIN_TO_CONTINUOUS})


@dataclass
class Decode(Case):
    """One request by itself, at several contexts: a token reads all weights, and its own KV."""

    title: str
    ours: OursOnDevice
    scale: Scale
    weight_bytes: int
    limits: Limits

    def __post_init__(self) -> None:
        cache = self.ours.engine.cache
        stores = [*cache.keys, *cache.values]
        self._bytes_per_token = sum(s[0].numel() * s.element_size() for s in stores)

    def round(self, board: Board, turn: int) -> None:
        for context in self.scale.contexts:
            prompt = random_prompt(context, self.ours.engine.vocab_size, f"decode/{turn}")
            intervals = self.ours.intervals(prompt, self.scale.single_tokens)
            rate = len(intervals) / sum(intervals)
            read = self.weight_bytes + context * self._bytes_per_token
            share = rate * read / self.limits.memory
            board.add(f"{context:,} tokens", {"decode, tokens/s": rate, MEMORY_SHARE: share})

    def judge(self, board: Board) -> None:
        row = MEMORY_SHARE, f"{self.scale.contexts[0]:,} tokens"
        board.check_figure(row, at_least(_MIN_MEMORY_SHARE))


@dataclass
class Busy(Case):
    """How much of the time the device works while a full batch is decoded, and at what."""

    title: str
    ours: OursOnDevice
    scale: Scale

    def round(self, board: Board, turn: int) -> None:
        vocabulary = self.ours.engine.vocab_size
        prompts = [
            random_prompt(64, vocabulary, f"busy/{turn}/{n}")
            for n in range(self.scale.busy_sequences)
        ]
        profile = self.ours.profile(prompts, self.scale.busy_steps)
        if profile is not None:
            board.add(self.ours.name, {BUSY: profile.busy})
            for share, name in profile.kernels[:_KERNELS] if turn == 0 else ():
                board.notes.append(f"{share:.1%} of its work: {name[:60]}")

    def judge(self, board: Board) -> None:
        board.check_figure((BUSY, self.ours.name), at_least(_MIN_BUSY))
