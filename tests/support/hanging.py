"""A worker whose device hangs: `rose worker` with an engine that never ends one step."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rose.engine_records import StepOutput
from rose.protocol import JobSpec
from rose_worker.engine import Prepared
from rose_worker.null_engine import NullEngine
from tests.support.mortal import run_with

#: A prompt that begins with this token id hangs the device in the first step.
HANGS_STEP = 777

#: A prompt that begins so hangs the tokenizer. It is long enough for a thread of its own.
HANGS_TOKENIZER = "hang " * 1000


class HangingEngine(NullEngine):
    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        if job.prompt == HANGS_TOKENIZER:
            threading.Event().wait()
        return super().prepare(job, generated_ids)

    def step(self, only: str | None = None) -> list[StepOutput]:
        if any(echo.prompt[0] == HANGS_STEP for echo in self._running.values()):
            threading.Event().wait()
        return super().step(only)


if __name__ == "__main__":
    run_with(HangingEngine)
