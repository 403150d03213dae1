"""The engine on one GPU, with no network: random weights of real shapes, in one run.

    python -m benchmarks.gpu [--only nano,decode,busy,service] [--model qwen3-0.6b,llama-8b]
        [--rounds N] [--json FILE] [--cpu-smoke]

The engine takes turns with transformers' continuous batching and `generate`. The limits of memory
and of products are measured first. The service runs over the embedded broker, which without a
redis-server is fakeredis. `--cpu-smoke` runs the same code small, on CPU, through Triton's
interpreter (the service by torch's attention): it proves that it runs, no more.
"""

import os
import sys

if "--cpu-smoke" in sys.argv:  # before anything imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

import argparse
import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.engine.cases.beside_peers import weight_bytes
from benchmarks.engine.cases.service import Service, serving
from benchmarks.engine.contenders import Contender
from benchmarks.engine.contenders.transformers import Continuous, Static
from benchmarks.gpu.cases import FULL, SMOKE, Busy, Decode, Nano, OursOnDevice
from benchmarks.limits import measure_limits
from benchmarks.models import ON_GPU, TINY, random_model
from benchmarks.report import environment
from benchmarks.runner import Runner, exit_on_sigterm, options, some_of
from roseinfer.gpu.options import GpuOptions

_CASES = ("nano", "decode", "busy", "service")
_MIN_RATIO = 0.97
_SERVED = "qwen3-0.6b"


def main() -> None:
    args = _arguments()
    if not args.cpu_smoke and not torch.cuda.is_available():
        sys.exit("benchmarks.gpu: there is no GPU here; --cpu-smoke runs it small without one")
    with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
        suite = Suite(args, Path(folder))
        suite.run(args.model, args.only)


class Suite:
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        """`folder` takes the model that is served."""
        smoke = args.cpu_smoke
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        scale = self._scale = SMOKE if smoke else FULL
        self._folder, self._smoke = folder, smoke
        self._device = torch.device("cpu" if smoke else "cuda")
        self._dtype = torch.float32 if smoke else torch.bfloat16
        sizes = scale.sum_elements, scale.matrix_width
        self._limits = measure_limits(self._device, self._dtype, *sizes)
        here = {
            "GPU": "none" if smoke else torch.cuda.get_device_name(self._device),
            "dtype": str(self._dtype).removeprefix("torch."),
            "memory, GB/s": f"{self._limits.memory / 1e9:.0f}",
            "products, TFLOP/s": f"{self._limits.compute / 1e12:.3g}",
        }
        packages = ("torch", "triton", "transformers", "redis", "fakeredis")
        facts = environment("benchmarks.gpu", packages, here)
        self.runner = Runner(facts, args.rounds or scale.rounds, args.json, judge=not smoke)

    def run(self, models: Sequence[str], only: Sequence[str]) -> None:
        for model in models:
            if {"nano", "decode", "busy"} & set(only):
                self._beside_peers(model, only)
            self._tidy()
        if "service" in only:
            self._service()

    def _beside_peers(self, name: str, only: Sequence[str]) -> None:
        scale = self._scale
        model = self._make(name)
        weights = weight_bytes(model)  # before the engine packs them
        ours = self._ours(model)
        if "decode" in only:
            title = f"One request, decode steps only: {name}, {weights / 1e9:.3g} GB of weights"
            decode = Decode(title, ours, scale, weights, self._limits)
            self.runner.measure(f"decode/{name}", decode)
        if "busy" in only:
            title = f"{scale.busy_sequences} requests decoding: {name}"
            self.runner.measure(f"busy/{name}", Busy(title, ours, scale))
        if "nano" in only:
            peer = self._make(name)
            lengths = f"{scale.min_tokens} to {scale.max_tokens} tokens in and out"
            title = f"{scale.requests} requests, {lengths}: {name}"
            contenders: list[Contender] = [
                ours,
                Static(peer, scale.static_batch, scale.limit_s),
                Continuous(peer, scale.max_step_tokens, scale.limit_s),
            ]
            vocabulary, numbers = ours.engine.vocab_size, weights // self._dtype.itemsize
            nano = Nano(title, contenders, vocabulary, scale, numbers, self._limits)
            self.runner.measure(f"nano/{name}", nano)

    def _service(self) -> None:
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
            # The engine in this process has the other half.
            "gpu_memory_utilization": scale.memory_utilization * 2,
        }
        if scale.kv_cache_tokens is not None:
            settings["kv_cache_tokens"] = scale.kv_cache_tokens
        limits = scale.max_batch_size, scale.max_step_tokens
        dtype = str(self._dtype).removeprefix("torch.")
        with serving(saved, dtype, *limits, **settings) as redis_url:
            self.runner.measure("service", Service(_SERVED, ours, redis_url, scale, _MIN_RATIO))

    def _make(self, name: str) -> Any:
        config = (TINY if self._smoke else ON_GPU)[name]()
        return random_model(config, self._device, self._dtype)

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
        gc.unfreeze()  # engines that are measured no more
        gc.collect()
        if not self._smoke:
            torch.cuda.empty_cache()


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.gpu", __doc__, _CASES)
    names = list(ON_GPU)
    parser.add_argument(
        "--model", type=some_of(names), default=names, help=f"some of {','.join(names)}"
    )
    parser.add_argument(
        "--cpu-smoke", action="store_true", help="small, on CPU, through Triton's interpreter"
    )
    return parser.parse_args()


if __name__ == "__main__":
    exit_on_sigterm()
    main()
