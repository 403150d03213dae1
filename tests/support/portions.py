"""A worker whose steps bring several tokens, as with speculation: `rose worker` with an engine that
draws anew, in each process, how many it says at once."""

import random

from rose.engine_records import StepOutput
from rose_worker.null_engine import NullEngine
from rose_worker.settings import WorkerSettings
from tests.support.mortal import run_with
from tests.support.rewriting import merged

MAX_TOKENS = 6


class PortionsEngine(NullEngine):
    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self._random = random.Random()
        self._held: dict[str, list[StepOutput]] = {}
        self._sizes: dict[str, int] = {}

    def step(self, only: str | None = None) -> list[StepOutput]:
        ready = []
        for output in super().step(only):
            job_id = output.request_id
            held = self._held.setdefault(job_id, [])
            held.append(output)
            size = self._sizes.setdefault(job_id, self._random.randint(1, MAX_TOKENS))
            if len(held) >= size or output.finish_reason is not None:
                ready.append(merged(held))
                self._forget(job_id)
        return ready

    def abort(self, job_id: str) -> None:
        super().abort(job_id)
        self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        self._held.pop(job_id, None)
        self._sizes.pop(job_id, None)


if __name__ == "__main__":
    run_with(PortionsEngine)
