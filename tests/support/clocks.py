"""Processes whose clocks are wrong: a worker's by a constant, that of Redis when a test says."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from rose_cli.local.broker import EmbeddedBroker

_SHIM = Path(__file__).with_name("wrong_clock.c")

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler, and Linux"
)

#: A worker that runs so: `program=SKEWED_WORKER`, with SKEW_S in the environment.
SKEWED_WORKER = ("tests.support.clocks",)


class RedisClock:
    """The clock of one redis-server."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_bytes(struct.pack("q", 0))

    def set(self, offset_s: int) -> None:
        """Ahead of the machine's clock by so much, from now on."""
        with self._file.open("r+b") as file:  # Redis has mapped it
            file.write(struct.pack("q", offset_s))


@contextmanager
def redis_with_a_clock(folder: Path) -> Iterator[tuple[EmbeddedBroker, RedisClock]]:
    """A redis-server of one's own. Its timers do not see that the clock is set."""
    clock, shim = RedisClock(folder / "clock"), folder / "wrong_clock.so"
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(_SHIM)]
    subprocess.run(compiler, check=True)
    variables = {"LD_PRELOAD": str(shim), "WRONG_CLOCK": str(folder / "clock")}
    with ExitStack() as stack:
        with patch.dict(os.environ, variables):
            broker = stack.enter_context(EmbeddedBroker(fake=False))
        yield broker, clock


if __name__ == "__main__":
    from rose_worker import main
    from rose_worker.settings import WorkerSettings
    from tests.chaos import clock as chaos_clock

    chaos_clock.skew(float(os.environ["SKEW_S"]))
    words = (word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    settings: dict[str, Any] = {name.replace("-", "_"): value for name, value in words}
    main.run(WorkerSettings(**settings))
