"""Builds the models and the cases, one after another, and lets their contenders take turns."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console

from benchmarks.board import Board
from benchmarks.engine.cases import Case
from benchmarks.engine.cases.service import Service, serving
from benchmarks.engine.cases.single import weight_bytes
from benchmarks.engine.contenders import Contender
from benchmarks.engine.contenders.continuous import Continuous
from benchmarks.engine.contenders.static import Static
from benchmarks.gpu.cases import Busy, Decode, Nano
from benchmarks.gpu.limits import measure
from benchmarks.gpu.models import CONFIGS, TINY, make
from benchmarks.gpu.ours import OursOnDevice
from benchmarks.gpu.scale import Scale
from benchmarks.report import Facts, environment
from roseinfer.gpu.options import GpuOptions

CASES = ("nano", "decode", "busy", "service")
_LEAST_RATIO = 0.97
_CONTINUOUS_ROUNDS = 1
_SERVED = "qwen3-0.6b"


class Measuring:
    def __init__(self, scale: Scale, folder: Path, *, smoke: bool) -> None:
        """`folder` takes the model that is served."""
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._scale, self._folder, self._smoke = scale, folder, smoke
        self._device = torch.device("cpu" if smoke else "cuda")
        self._dtype = torch.float32 if smoke else torch.bfloat16
        self._limits = measure(self._device, self._dtype, scale.sum_elements, scale.matrix_width)
        self.boards: dict[str, Board] = {}
        self._said = Console(stderr=True, highlight=False, soft_wrap=True)

    def facts(self) -> Facts:
        device = "none" if self._smoke else torch.cuda.get_device_name(self._device)
        here = {
            "GPU": device,
            "dtype": str(self._dtype).removeprefix("torch."),
            "memory, GB/s": f"{self._limits.memory / 1e9:.0f}",
            "products, TFLOP/s": f"{self._limits.compute / 1e12:.3g}",
        }
        packages = ("torch", "triton", "transformers", "redis", "fakeredis")
        return environment("benchmarks.gpu", packages, here)

    def run(self, models: Sequence[str], only: Sequence[str]) -> Iterator[Board]:
        """Each case's board, as soon as it is full."""
        for model in models:
            if {"nano", "decode", "busy"} & set(only):
                yield from self._beside_peers(model, only)
            self._tidy()
        if "service" in only:
            yield from self._service()

    def _beside_peers(self, name: str, only: Sequence[str]) -> Iterator[Board]:
        scale = self._scale
        model = self._make(name)
        weights = weight_bytes(model)  # before the engine packs them
        ours = self._ours(model)
        if "decode" in only:
            title = f"One request, decode steps only: {name}, {weights / 1e9:.3g} GB of weights"
            contexts, count = scale.contexts, scale.new_tokens
            decode = Decode(title, ours, contexts, count, weights, self._limits)
            yield self._measure(f"decode/{name}", decode)
        if "busy" in only:
            title = f"{scale.busy_sequences} requests decoding: {name}"
            busy = Busy(title, ours, scale.busy_sequences, scale.busy_steps)
            yield self._measure(f"busy/{name}", busy)
        if "nano" in only:
            peer = self._make(name)
            least, most = scale.lengths
            title = f"{scale.requests} requests, {least} to {most} tokens in and out: {name}"
            limit = scale.max_step_tokens, scale.limit_s
            contenders: list[Contender] = [
                ours,
                Continuous(peer, _CONTINUOUS_ROUNDS, *limit),
                Static(peer, scale.static_batch),
            ]
            vocabulary, numbers = ours.engine.vocab_size, weights // self._dtype.itemsize
            nano = Nano(title, contenders, scale, vocabulary, numbers, self._limits)
            yield self._measure(f"nano/{name}", nano)

    def _service(self) -> Iterator[Board]:
        scale = self._scale
        saved = self._folder / _SERVED
        self._make(_SERVED).save_pretrained(saved)
        self._tidy()
        # Prompts of this case are too long for the interpreter.
        attention = "sdpa" if self._smoke else "triton"
        ours = self._ours(self._make(_SERVED), attention)
        settings: dict[str, Any] = {
            "device": str(self._device),
            "attention": attention,
            "gpu_memory_utilization": scale.memory_utilization * 2,  # ours has the other half
        }
        if scale.kv_cache_tokens is not None:
            settings["kv_cache_tokens"] = scale.kv_cache_tokens
        limits = scale.max_batch_size, scale.max_step_tokens
        dtype = str(self._dtype).removeprefix("torch.")
        with serving(saved, dtype, *limits, **settings) as redis_url:
            title = f"Through Redis, {scale.service_requests} streaming subscribers: {_SERVED}"
            service = Service(
                title,
                ours,
                redis_url,
                requests=scale.service_requests,
                most_tokens=scale.lengths[1],
                singles=scale.first_tokens,
                least_ratio=_LEAST_RATIO,
            )
            yield self._measure("service", service)

    def _measure(self, key: str, case: Case) -> Board:
        self._said.print(f"{case.title}: warming up")
        case.round(Board(case.title), -1)
        board = self.boards[key] = Board(case.title)
        for turn in range(self._scale.rounds):
            self._said.print(f"{case.title}: round {turn + 1} of {self._scale.rounds}")
            case.round(board, turn)
        if self._smoke:
            board.notes.append("small and interpreted: these figures say that it runs, no more")
        else:
            case.judge(board)
        return board

    def _make(self, name: str) -> Any:
        config = (TINY if self._smoke else CONFIGS)[name]()
        return make(config, self._device, self._dtype)

    def _ours(self, model: Any, attention: str = "triton") -> OursOnDevice:
        scale = self._scale
        gpu = GpuOptions(
            attention=attention,
            memory_utilization=scale.memory_utilization,
            max_batch_size=scale.max_batch_size,
            max_step_tokens=scale.max_step_tokens,
        )
        return OursOnDevice(model, gpu, scale.kv_cache_tokens)

    def _tidy(self) -> None:
        gc.collect()
        if not self._smoke:
            torch.cuda.empty_cache()
