"""The engine on a device, and how busy it keeps it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile

from benchmarks.engine.contenders.ours import Ours, exactly
from benchmarks.limits import synchronize
from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.demo_model import MODEL_PATH
from roseinfer.gpu.options import GpuOptions
from roseinfer.loading import load_tokenizer


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

    def scheduler(self) -> OnlineScheduler:
        return OnlineScheduler(self.engine, *self._limits, keep_finished=False, overlap=True)

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
