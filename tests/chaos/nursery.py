"""Forks the processes of a run from one, `tests.chaos.nursery`, that has imported everything.

Hundreds of processes die in a run, and each start would cost a second of a core for imports alone.
Those that are forked are the children of the harness, which is told how each of them ended.
"""

import gc
import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tests.support.children import Child, redirect
from tests.support.fork_server import ForkServer, forked


class Nursery:
    """Entering starts it. What it has forked ends when the harness leaves, or dies."""

    def __init__(self, roles: Iterable[str], engines: Iterable[str] = ()) -> None:
        """`engines`: those that the workers have."""
        self._roles = list(roles)
        self._engines = ",".join(engines)

    def __enter__(self) -> Self:
        # Whoever reads from it finds its end when the harness is no more: nobody else can write.
        alive, self._ours = os.pipe()
        words = str(alive), self._engines, *self._roles
        self._server = ForkServer("tests.chaos.nursery", *words, pass_fds=[alive])
        os.close(alive)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ours)
        self._server.close()

    def fork(self, role: str, context: str, log: Path) -> Child:
        """`context`: the argument of the role's module. `log`: what it prints goes there."""
        return self._server.fork([role, context, str(log)])


def _become(role: str, context: str, log: str, alive: int) -> None:
    os.dup2(alive, 0)
    redirect(log)
    sys.argv = [f"tests.chaos.{role}", context]


def _main() -> None:
    alive, engines, *roles = sys.argv[1:]
    if "vllm" in engines.split(","):
        importlib.import_module("tests.support.vllm_modules")
    modules = {role: importlib.import_module(f"tests.chaos.{role}") for role in roles}
    gc.freeze()  # what is there for good stays shared
    asked = forked()
    if asked is not None:
        role, context, log = asked
        _become(role, context, log, int(alive))
        modules[role].main()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    _main()
