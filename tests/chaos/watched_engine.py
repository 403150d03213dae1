"""An engine that keeps a journal of the jobs it begins on, and does what their metadata says.

It kills its own process when it steps a job that is poison, holds the tokens of another back for a
while, says those of a job in portions together, and hangs as long as a file says so.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Sequence

from rose.engine_records import SchedulerStats, StepOutput
from rose.protocol import JobSpec
from rose_worker.engine import Engine, ModelInfo, Prepared
from tests.chaos import clock
from tests.chaos.context import PAUSE_S, Context, hang_file, healed_file
from tests.chaos.journal import Journal
from tests.support.rewriting import merged

_HANG_POLL_S = 0.02

#: Of a job in portions the tokens come so many together, at most.
_MAX_PORTION = 4


class _Pause:
    """What a job says from token `at` on is held back for a while, then comes step by step."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._until: float | None = None
        self._held: list[StepOutput] = []

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def through(self, output: StepOutput) -> bool:
        """False: it is held back."""
        if self._until is None and output.index < self._at:
            return True
        if self._until is None:
            self._until = time.monotonic() + PAUSE_S
        self._held.append(output)
        return False

    def next(self) -> StepOutput | None:
        over = self._until is not None and time.monotonic() > self._until
        return self._held.pop(0) if over and self._held else None


class _Portions:
    """What a job says comes in events of several tokens. How many depends on where it was taken, so
    what is written again has other boundaries. The first token comes alone and at once, as that of
    any other job: without one each fault that hits its worker counts against the job."""

    def __init__(self, job_id: str, done: int) -> None:
        self._random = random.Random(f"{job_id} {done}")
        self._size = 1
        self._held: list[StepOutput] = []

    def through(self, output: StepOutput) -> StepOutput | None:
        """None: it is held back, for a step or some."""
        self._held.append(output)
        if len(self._held) < self._size and output.finish_reason is None:
            return None
        held, self._held = self._held, []
        self._size = self._random.randint(1, _MAX_PORTION)
        return merged(held) if len(held) > 1 else held[0]


class WatchedEngine:
    def __init__(self, engine: Engine, journal: Journal, context: Context) -> None:
        self._engine = engine
        self._journal = journal
        self._folder = context.folder
        self._hangs = {
            what: hang_file(context.folder, f"worker-{context.index}", what)
            for what in ("step", "tokenizer")
        }
        self._done: dict[str, int] = {}
        """Tokens of each job in the engine."""
        self._die_at: dict[str, int] = {}
        self._pauses: dict[str, _Pause] = {}
        self._portions: dict[str, _Portions] = {}
        self._prepared: dict[str, int] = {}
        self._serving = False

    @property
    def model(self) -> ModelInfo:
        return self._engine.model

    @property
    def capacity(self) -> int:
        return self._engine.capacity

    @property
    def has_work(self) -> bool:
        if not self._serving:
            self._serving = True
            self._journal.write(clock.now(), "serving")
        return self._engine.has_work or any(pause.holds for pause in self._pauses.values())

    def vocabulary(self) -> Sequence[bytes] | None:
        return self._engine.vocabulary()

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        self._journal.write(clock.now(), "given", job.id, len(generated_ids))
        self._hang("tokenizer")
        prepared = self._engine.prepare(job, generated_ids)
        self._prepared[job.id] = len(generated_ids)
        number = job.metadata.get("number")
        if "portions" in job.metadata:
            self._portions[job.id] = _Portions(job.id, len(generated_ids))
        if "poison" in job.metadata and not healed_file(self._folder, number).exists():
            self._die_at[job.id] = int(job.metadata["poison"] or 0)
        if "pause" in job.metadata and not generated_ids:
            self._pauses[job.id] = _Pause(int(job.metadata["pause"] or 0))
        return prepared

    def add(self, prepared: Prepared) -> None:
        done = self._prepared.pop(prepared.job_id, 0)
        self._done[prepared.job_id] = done
        self._journal.write(clock.now(), "take", prepared.job_id, done)
        self._engine.add(prepared)

    def abort(self, job_id: str) -> None:
        self._done.pop(job_id, None)
        self._pauses.pop(job_id, None)
        self._portions.pop(job_id, None)
        self._engine.abort(job_id)

    def step(self, only: str | None = None) -> list[StepOutput]:
        for job_id in [only] if only is not None else list(self._done):
            if self._done.get(job_id, -1) >= self._die_at.get(job_id, sys.maxsize):
                self._journal.write(clock.now(), "poisoned", job_id, self._done[job_id])
                os.kill(os.getpid(), signal.SIGKILL)
        self._hang("step")
        outputs = self._in_portions(self._paused(self._engine.step(only)))
        for output in outputs:
            if output.finish_reason is not None:
                self._done.pop(output.request_id, None)
                self._pauses.pop(output.request_id, None)
                self._portions.pop(output.request_id, None)
            elif output.request_id in self._done:
                self._done[output.request_id] += len(output.token_ids)
        return outputs

    def _in_portions(self, outputs: list[StepOutput]) -> list[StepOutput]:
        passed = []
        for output in outputs:
            portions = self._portions.get(output.request_id)
            whole = output if portions is None else portions.through(output)
            if whole is not None:
                passed.append(whole)
        return passed

    def _paused(self, outputs: list[StepOutput]) -> list[StepOutput]:
        passed = [
            output
            for output in outputs
            if (pause := self._pauses.get(output.request_id)) is None or pause.through(output)
        ]
        late = [output for pause in self._pauses.values() if (output := pause.next()) is not None]
        return passed + late

    def _hang(self, what: str) -> None:
        while self._hangs[what].exists():
            time.sleep(_HANG_POLL_S)

    def stats(self) -> SchedulerStats:
        return self._engine.stats()
