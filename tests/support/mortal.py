"""A worker that dies of poison: `rose worker` with an engine that kills its own process."""

import os
import signal
import sys
from typing import Any

from rose.engine_records import StepOutput
from rose_worker import main
from rose_worker.null_engine import NullEngine
from rose_worker.settings import WorkerSettings

#: A prompt that begins with this token id is poison.
POISON = 666


class MortalEngine(NullEngine):
    def step(self, only: str | None = None) -> list[StepOutput]:
        for job_id, echo in self._running.items():
            if echo.prompt[0] == POISON and only in (None, job_id):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(only)


def run_with(engine: type[NullEngine]) -> None:
    """Be a `rose worker` with this engine."""
    main.NullEngine = engine  # type: ignore[attr-defined]
    words = (word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    settings: dict[str, Any] = {name.replace("-", "_"): value for name, value in words}
    main.run(WorkerSettings(**settings))


if __name__ == "__main__":
    run_with(MortalEngine)
