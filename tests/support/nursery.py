"""Forks the services of the tests from processes that have imported what they need.

Tests start hundreds of workers and gateways. A fresh interpreter spends half a second of a core to
import a worker without an engine, a whole one for a gateway and four for a worker with the real
engine. In all else a fork is the process that `python -m` would start: it has the same arguments,
variables, signals, log and exit status, and is a child of the tests.
"""

import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self, cast
from unittest.mock import patch

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import ServiceProcess
from tests.support.children import Child, redirect
from tests.support.fork_server import ForkServer, forked

#: What each nursery has imported.
LIGHT = (
    "rose_cli.commands.gateway",
    "rose_cli.commands.worker",
    "rose_cli.main",
    "rose_gateway.app",
    "rose_gateway.server",
    "rose_worker.main",
    "rose_worker.null_engine",
    "rose_worker.service",
    "fakeredis",
    "uvloop",
)
#: What is run so. Others change what is imported before they import it.
_PROGRAMS = (
    "rose_cli",
    "rose_cli.local.broker",
    "tests.support.hanging",
    "tests.support.mortal",
    "tests.support.mortal_model",
    "tests.support.portions",
    "tests.support.scripted",
    "tests.support.trial",
)
ENGINE = (
    *LIGHT,
    "roseinfer._openmp",
    "torch",
    "transformers",
    "rose_worker.rose_engine",
    "rose_worker.rose_encoder",
)
#: Importing vLLM takes longest of all, and it must be told first how it is used.
VLLM = (*LIGHT, "tests.support.vllm_modules")
#: With a model.
_ENGINES = {"rose": ENGINE, "vllm": VLLM}
_WORKERS = (["rose_cli", "worker"], ["tests.support.mortal_model"])


class Nursery:
    """Entering starts it."""

    def __init__(self, modules: Sequence[str]) -> None:
        """`modules`: to import, where they are installed."""
        self._modules = modules

    def __enter__(self) -> Self:
        self._server = ForkServer("tests.support.nursery", *self._modules)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def fork(
        self,
        words: Sequence[str],
        log: Path,
        variables: Mapping[str, str] | None = None,
        *,
        program: bool = False,
    ) -> Child:
        """As `python -m WORDS` here and now: in this folder, its output in `log`, with this
        process's variables if not given. `program`: as WORDS, which need no Python."""
        log.touch()  # it may be read at once
        return self._server.fork(
            {
                "words": words,
                "program": program,
                "variables": dict(os.environ if variables is None else variables),
                "folder": str(Path.cwd()),
                "log": str(log),
            }
        )


class Nurseries:
    """Each begins when it is needed first."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._begun: dict[tuple[str, ...], Nursery] = {}

    def fork(
        self, command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
    ) -> Child:
        """`command`: PYTHON -m MODULE ..."""
        _, _, *words = command
        if words[0] not in _PROGRAMS or "LD_PRELOAD" in os.environ:
            return self.execute(command, log, variables)  # as a fresh interpreter
        engine = next((word for word in words if word.startswith("--engine=")), "--engine=rose")
        modules: tuple[str, ...] = LIGHT
        if any(words[: len(worker)] == worker for worker in _WORKERS):
            modules = _ENGINES.get(engine.removeprefix("--engine="), LIGHT)
        return self._with(modules).fork(words, log, variables)

    def execute(
        self, command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
    ) -> Child:
        """Any program. It ends with the tests, however those do."""
        return self._with(()).fork(command, log, variables, program=True)

    def _with(self, modules: tuple[str, ...]) -> Nursery:
        if modules not in self._begun:
            self._begun[modules] = self._stack.enter_context(Nursery(modules))
        return self._begun[modules]


@contextmanager
def forking() -> Iterator[None]:
    """Meanwhile services, Redis and stand-ins for it are forked instead of started: they end with
    this process, even where a time limit kills it."""

    def start(service: ServiceProcess) -> None:
        child = nurseries.fork(service._command, service._log, service._environment)
        service._process = cast("subprocess.Popen[bytes]", child)

    def begin(broker: EmbeddedBroker, command: Sequence[str], log: Path) -> Any:
        if broker.kind == "fakeredis":
            return nurseries.fork(command, log)
        return nurseries.execute(command, log)

    with ExitStack() as stack:
        nurseries = Nurseries(stack)
        stack.enter_context(patch.object(ServiceProcess, "start", start))
        stack.enter_context(patch.object(EmbeddedBroker, "begin", begin))
        yield


def _become(asked: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(asked["variables"])
    os.chdir(asked["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    redirect(asked["log"])
    sys.argv = list(asked["words"])


def _main() -> None:
    for module in sys.argv[1:]:
        with suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # what is there for good stays shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all
    asked = forked()
    if asked is not None:
        _become(asked)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if asked["program"]:
            os.execv(asked["words"][0], asked["words"])
        runpy.run_module(asked["words"][0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
