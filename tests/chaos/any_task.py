"""The null engine and its encoders as one: it generates, embeds and scores, as each job asks."""

from collections.abc import Sequence
from dataclasses import replace

from rose.engine_records import SchedulerStats, StepOutput
from rose.protocol import JobSpec
from rose_worker.engine import Engine, ModelInfo, Prepared
from rose_worker.null_engine import NullEncoder, NullEngine
from rose_worker.settings import WorkerSettings


class AnyTask:
    def __init__(self, settings: WorkerSettings) -> None:
        self._engines: dict[str, Engine] = {
            "generate": NullEngine(settings),
            "embed": NullEncoder(settings.model_copy(update={"task": "embed"})),
            "score": NullEncoder(settings.model_copy(update={"task": "score"})),
        }

    @property
    def model(self) -> ModelInfo:
        return self._engines["generate"].model

    @property
    def capacity(self) -> int:
        return self._engines["generate"].capacity

    @property
    def has_work(self) -> bool:
        return any(engine.has_work for engine in self._engines.values())

    def vocabulary(self) -> None:
        """As of the null engine."""

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        prepared = self._engines[job.task].prepare(job, generated_ids)
        return replace(prepared, handle=(job.task, prepared))

    def add(self, prepared: Prepared) -> None:
        task, own = prepared.handle
        self._engines[task].add(own)

    def abort(self, job_id: str) -> None:
        for engine in self._engines.values():
            engine.abort(job_id)

    def step(self, only: str | None = None) -> list[StepOutput]:
        return [output for engine in self._engines.values() for output in engine.step(only)]

    def stats(self) -> SchedulerStats:
        stats = [engine.stats() for engine in self._engines.values()]
        return SchedulerStats(
            running=sum(one.running for one in stats),
            batch_size=sum(one.batch_size for one in stats),
        )
