"""A device that only sleeps: everything around its kernels is the engine's own.

Scheduler, planner, layout of steps, sampling's tables, detokeniser and the step that runs ahead are
those of a GPU. A launch returns at once, and its results come when the device would have them.
Tokens are drawn from logits that are the same in every step, by the compiled sampler: on a GPU the
host packs a table and launches a kernel instead, which takes about as long.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from roseinfer import InferenceEngine
from roseinfer.execution.engine_core import StepLogits
from roseinfer.gpu.batch import DeviceBatch, pack
from roseinfer.gpu.graphs import GraphedModel, batch_sizes
from roseinfer.gpu.options import GpuOptions
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.runner import PackedRunner
from roseinfer.sampling.sampler import SampledToken, SampledTokens
from roseinfer.sessions.session import Chunk, DeviceTokens, InferenceSession

_NO_BUDGET = 1 << 60


class SimulatedDevice:
    """Computes a step in `step_s` seconds, in the order of their launches, whatever is in it."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.busy_s = 0.0
        self.done_at = 0.0
        """when the last step that was launched is done, on the clock of `perf_counter`"""

    def launch(self) -> None:
        self.done_at = max(self.done_at, time.perf_counter()) + self.step_s
        self.busy_s += self.step_s

    # What a recorder of CUDA graphs does.

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return self.launch

    def free_bytes(self) -> int:
        return _NO_BUDGET


class SimulatedEngine(InferenceEngine):
    """The built-in model's tokenizer and cache, and a device in the place of what computes it."""

    def __init__(
        self, *args: Any, simulated: SimulatedDevice, gpu: GpuOptions, **options: Any
    ) -> None:
        super().__init__(*args, gpu=gpu, **options)
        self._simulated = simulated
        model = _Model(simulated, gpu.max_batch_size, self.vocab_size)
        self._runner = GraphedModel(
            model,
            simulated,
            batch_sizes(gpu.max_batch_size),
            context=self.context_length,
            budget_bytes=_NO_BUDGET,
        )
        self._runner.bind(self.cache)

    def sample(self, logits: StepLogits) -> SampledTokens:
        with torch.inference_mode():
            return _SampledLater(logits.chunks, logits.values, self._simulated)


class _Model(PackedRunner):
    """Any model: its logits do not depend on its tokens."""

    def __init__(self, device: SimulatedDevice, max_batch_size: int, vocab_size: int) -> None:
        self._device = device
        generator = torch.Generator().manual_seed(0)
        self._logits = torch.randn(max_batch_size, vocab_size, generator=generator)

    def bind(self, cache: KVCache) -> None:
        self._block_size = cache.block_size

    def pack(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> DeviceBatch:
        return pack(chunks, self._block_size, self._logits.device, device_tokens)

    def compute(self, batch: DeviceBatch, rows: Tensor) -> Tensor:  # noqa: ARG002 - any batch
        self._device.launch()
        return self._logits[: len(rows)]


class _SampledLater(SampledTokens):
    def __init__(self, chunks: Sequence[Chunk], logits: Tensor, device: SimulatedDevice) -> None:
        super().__init__(chunks, logits)
        self._done_at = device.done_at

    def wait(self) -> dict[InferenceSession, int | Iterator[SampledToken]]:
        if (left_s := self._done_at - time.perf_counter()) > 0:
            time.sleep(left_s)
        return super().wait()
