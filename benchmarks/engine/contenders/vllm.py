"""vLLM in an environment of its own."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.engine.contenders import Course, Run, Traffic
from benchmarks.engine.contenders.frozen import FrozenProcess, plain_environment
from benchmarks.workload import Workload

_CACHE_GIB = 4
#: vLLM's guide for CPUs asks for both before anything else is loaded.
_PRELOADS = ("libiomp5.so", "libtcmalloc_minimal.so.4")
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")


class Vllm(FrozenProcess):
    name = "vLLM, compiled"

    def __init__(
        self,
        python: Path,
        model: Path,
        dtype: str,
        context: int,
        batch: int,
        *,
        rose_sampling: bool = False,
        eager: bool = False,
        cache_gib: int = _CACHE_GIB,
    ) -> None:
        """`rose_sampling`: tokens are drawn by our logits processor. Then `python` has our packages
        too. `eager`: nothing is compiled."""
        self.preloaded = preloads(python)
        command = [str(python), "-m", "benchmarks.peers.with_vllm", "--model", str(model)]
        command += ["--dtype", dtype, "--max-model-len", str(context)]
        command += ["--max-batch-size", str(batch)]
        command += ["--rose-sampling"] * rose_sampling + ["--eager"] * eager
        super().__init__("vLLM", command, in_process(self.preloaded, cache_gib))

    @property
    def versions(self) -> Mapping[str, str]:
        return self.greeting

    def sample(self, work: Workload, sampling: Mapping[str, float]) -> Run:
        """`sampling`: temperature, top_p; greedy where it is empty."""
        asked = {"prompts": work.prompts, "new_tokens": work.new_tokens, "sampling": sampling}
        answer = self.ask(asked)
        return Run(answer["seconds"], answer["outputs"])

    def serve(self, traffic: Traffic) -> Course:
        return Course(**self.ask(asdict(traffic)))


def preloads(python: Path) -> list[Path]:
    """What of the libraries that vLLM asks for is there; pip brings the first one's package."""
    folders = [python.absolute().parent.parent / "lib", *map(Path, _LIBRARIES)]
    paths_by_library = [
        [f / name for f in folders if (f / name).exists()][:1] for name in _PRELOADS
    ]
    return [path for paths in paths_by_library for path in paths]


def environment(preloaded: Sequence[Path], cache_gib: int) -> dict[str, str]:
    """What vLLM's guide for CPUs asks for."""
    cores = sorted(os.sched_getaffinity(0))
    return plain_environment() | {
        "VLLM_CPU_KVCACHE_SPACE": str(cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(map(str, preloaded)),
    }


def in_process(preloaded: Sequence[Path], cache_gib: int) -> dict[str, str]:
    """Without a process of its own for the engine."""
    return environment(preloaded, cache_gib) | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    }
