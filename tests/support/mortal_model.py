"""A worker with a model that dies of a prompt: `rose worker` around an engine of either kind.

A prompt is poison by its first token id. `roseinfer` and vLLM have no such failure on demand.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rose.engine_records import StepOutput
from rose.protocol import JobSpec
from rose_worker import main
from rose_worker.engine import Engine, Prepared
from rose_worker.settings import WorkerSettings

#: Kills the process in the step that would compute it.
KILLS = 666
#: Asks in that step for more memory than there is.
FAILS = 667


class MortalModel:
    """Everything else is the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._poison: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        if job.token_ids and job.token_ids[0] in (KILLS, FAILS):
            self._poison[job.id] = job.token_ids[0]
        return self._engine.prepare(job, generated_ids)

    def step(self, only: str | None = None) -> list[StepOutput]:
        for job_id, poison in self._poison.items():
            if only in (None, job_id) and poison == KILLS:
                os.kill(os.getpid(), signal.SIGKILL)
            if only in (None, job_id):
                torch.empty(1 << 60, dtype=torch.uint8)
        return self._engine.step(only)


def _mortal(load: Callable[[], Engine]) -> Callable[[], Engine]:
    return lambda: MortalModel(load())


if __name__ == "__main__":
    loader = main.loader
    main.loader = lambda *given: _mortal(loader(*given))
    words = (word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    given: dict[str, Any] = {name.replace("-", "_"): value for name, value in words}
    main.run(WorkerSettings(**given))
