"""vLLM in an environment and a process of its own, frozen while it is not its turn."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from benchmarks.engine.contenders import Course, Run, Streaming, Traffic
from benchmarks.workload import Workload

_RUNNER = Path(__file__).parents[2] / "peers/with_vllm.py"
_CACHE_GIB = 4
#: vLLM's guide for CPUs asks for both before anything else is loaded.
_PRELOADS = ("libiomp5.so", "libtcmalloc_minimal.so.4")
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")


class Vllm(Streaming):
    """`with` starts and ends it.

    Between turns its whole process group is stopped, so that no thread of it can spin.
    """

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
        self.versions: Mapping[str, str] = {}
        self.preloaded = preloads(python)
        self._environment = in_process(self.preloaded, cache_gib)
        self._command = [str(python), str(_RUNNER), "--model", str(model), "--dtype", dtype]
        self._command += ["--max-model-len", str(context), "--max-batch-size", str(batch)]
        self._command += ["--rose-sampling"] * rose_sampling + ["--eager"] * eager
        self._folder = tempfile.TemporaryDirectory(prefix="rose-bench-")
        self._log = Path(self._folder.name, "log")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
        try:
            self.versions = self._answer()
        except RuntimeError:
            self.__exit__()
            raise
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self._running.pid

    def run(self, work: Workload) -> Run:
        return self.sample(work, {})

    def sample(self, work: Workload, sampling: Mapping[str, float]) -> Run:
        """`sampling`: temperature, top_p; greedy where it is empty."""
        asked = {"prompts": work.prompts, "new_tokens": work.new_tokens, "sampling": sampling}
        answer = self._ask(asked)
        return Run(answer["seconds"], answer["outputs"])

    def serve(self, traffic: Traffic) -> Course:
        return Course(**self._ask(asdict(traffic)))

    def intervals(self, prompt: Sequence[int], new_tokens: int) -> list[float]:
        times = self._ask({"prompt": list(prompt), "new_tokens": new_tokens})["times"]
        return [later - sooner for sooner, later in itertools.pairwise(times)]

    def _ask(self, what: Mapping[str, Any]) -> Any:
        self._signal(signal.SIGCONT)
        try:
            stdin = self._running.stdin
            if stdin is not None:
                stdin.write(json.dumps(what) + "\n")
                stdin.flush()
            return self._answer()
        finally:
            self._signal(signal.SIGSTOP)

    def _answer(self) -> Any:
        """Raises: RuntimeError: it ended instead."""
        stdout = self._running.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            raise RuntimeError(f"vLLM ended: {self._log.read_text(errors='replace')[-2000:]}")
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        if self._running.poll() is None:
            os.killpg(self._running.pid, number)

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("vLLM is not started: use it in a `with`")
        return self._process


def preloads(python: Path) -> list[Path]:
    """What of the libraries that vLLM asks for is there; pip brings the first one's package."""
    folders = [python.absolute().parent.parent / "lib", *map(Path, _LIBRARIES)]
    paths_by_library = [
        [f / name for f in folders if (f / name).exists()][:1] for name in _PRELOADS
    ]
    return [path for paths in paths_by_library for path in paths]


def environment(preloaded: Sequence[Path], cache_gib: int) -> dict[str, str]:
    """What vLLM's guide for CPUs asks for, without what this process has set for torch."""
    cores = sorted(os.sched_getaffinity(0))
    ours = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "LD_PRELOAD", "OMP_NUM_THREADS")
    return {name: value for name, value in os.environ.items() if name not in ours} | {
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
