"""A worker whose device hangs: `rose worker` with an engine that never ends one step."""

import threading

from rose.engine_records import StepOutput
from rose_worker.null_engine import NullEngine
from tests.support.mortal import run_with

#: A prompt that begins with this token id hangs the device in the first step.
HANGS_STEP = 777


class HangingEngine(NullEngine):
    def step(self, only: str | None = None) -> list[StepOutput]:
        if any(echo.prompt[0] == HANGS_STEP for echo in self._running.values()):
            threading.Event().wait()
        return super().step(only)


if __name__ == "__main__":
    run_with(HangingEngine)
