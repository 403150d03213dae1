"""Servers of OpenAI's completions, frozen while it is not their turn."""

import signal
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

from benchmarks.engine.contenders.vllm import environment, preloads
from benchmarks.gateway.stage import stage
from benchmarks.process_group import ProcessGroup
from rose_cli.local.broker import free_port
from rose_cli.local.services import GatewayProcess, WorkerProcess

MODEL_NAME = "measured"
_VLLM_CACHE_GIB = 2
#: vLLM compiles the model at its first start.
_START_S = 900.0


class Server(ABC):
    """`with` starts it, loads the model and freezes it; `thaw` and `freeze` mark its turn."""

    name: str
    url: str
    """without /v1"""
    model: str
    """as requests name it"""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def thaw(self) -> None: ...

    @abstractmethod
    def freeze(self) -> None: ...


class Ours(Server):
    """Redis, a worker and a gateway, each in a process of its own."""

    name = "roseinfer"

    def __init__(
        self, model: Path, batch: int, context: int, dtype: str = "bfloat16", **worker: Any
    ) -> None:
        """`worker`: more of what `WorkerProcess` takes."""
        self._worker = {
            "model": str(model),
            "dtype": dtype,
            "max_batch_size": batch,
            "max_context": context,
            **worker,
        }
        self._stack = ExitStack()
        self._services: list[WorkerProcess | GatewayProcess] = []

    def __enter__(self) -> Self:
        everything = self._stack.enter_context(stage(**self._worker))
        self._services = [everything.worker, everything.gateway]
        self.redis_url = everything.redis_url
        self.url = everything.gateway.url.removesuffix("/v1")
        self.model = everything.model
        self.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        self._stack.close()

    def thaw(self) -> None:
        for service in self._services:
            service.signal(signal.SIGCONT)
        time.sleep(1)  # after a stop longer than a lease the worker looks around first

    def freeze(self) -> None:
        for service in self._services:
            service.signal(signal.SIGSTOP)


class Vllm(Server):
    """`vllm serve` in an environment of its own."""

    name = "vLLM"

    def __init__(
        self,
        python: Path,
        model: Path,
        batch: int,
        context: int,
        dtype: str = "bfloat16",
        *,
        eager: bool = False,
    ) -> None:
        """`eager`: nothing is compiled."""
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.model = MODEL_NAME
        command = [str(vllm_program(python)), "serve", str(model), "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--served-model-name", MODEL_NAME]
        command += ["--dtype", dtype, "--max-model-len", str(context)]
        command += ["--max-num-seqs", str(batch), *["--enforce-eager"] * eager]
        self._group = ProcessGroup(command, vllm_environment(python))

    def __enter__(self) -> Self:
        try:
            self._wait_ready(self._group.start())
        except BaseException:
            self._group.end()
            raise
        self.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        self._group.end()

    def thaw(self) -> None:
        self._group.thaw()

    def freeze(self) -> None:
        self._group.freeze()

    def _wait_ready(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):  # noqa: S310 - loopback
                    return
            except (OSError, HTTPException):
                time.sleep(0.5)
        raise RuntimeError(f"vLLM does not serve: {self._group.last_words}")


def vllm_program(python: Path) -> Path:
    return python.absolute().parent / "vllm"


def vllm_environment(python: Path) -> dict[str, str]:
    """Of the server, and of its load tool."""
    return environment(preloads(python), _VLLM_CACHE_GIB) | {"VLLM_TARGET_DEVICE": "cpu"}
