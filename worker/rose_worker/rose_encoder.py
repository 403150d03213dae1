"""roseinfer's encoders behind the worker's protocol."""

import logging
from collections.abc import Sequence
from typing import Literal

from rose.engine_records import SchedulerStats, StepOutput
from rose.errors import ConfigurationError
from rose.memory import gigabytes, used_memory
from rose.protocol import JobSpec
from rose_worker.engine import ModelInfo, Prepared, check_dimensions, check_rows
from rose_worker.rose_engine import set_threads
from rose_worker.settings import WorkerSettings
from roseinfer.encoders.encoder import EncodedInput, Encoder
from roseinfer.encoders.scheduler import EncodingRequest, EncodingScheduler

log = logging.getLogger("rose.engine")


class RoseEncoder:
    def __init__(self, settings: WorkerSettings, task: Literal["embed", "score"]) -> None:
        """Load the model. Raises: ModelNotFound, UnsupportedModel, ConfigurationError"""
        if settings.model is None:
            raise ConfigurationError(f"ROSE_TASK={task} needs a model (ROSE_MODEL)")
        if settings.weights is not None:
            raise ConfigurationError(
                f"ROSE_WEIGHTS={settings.weights} is for models that generate: leave it out"
            )
        set_threads(settings.torch_threads)
        self._encoder = encoder = Encoder(
            settings.model,
            task,
            tokenizer=settings.tokenizer,
            device=settings.device,
            dtype=settings.dtype,
            max_tokens=settings.max_context,
        )
        log.info(
            "the model is loaded: %s of memory; a text has at most %d tokens, and its answer %d "
            "numbers",
            gigabytes(used_memory()),
            encoder.max_tokens,
            encoder.width,
        )
        self._scheduler = EncodingScheduler(
            encoder, settings.max_batch_size, settings.max_step_tokens
        )
        self.model = ModelInfo(
            name=encoder.name,
            context_tokens=encoder.max_tokens,
            max_bytes_per_token=None,
            device=encoder.device,
            dtype=encoder.dtype,
            decoder="torch",
            fingerprint=encoder.fingerprint,
            chat=False,
            task=task,
            dimensions=encoder.width,
        )

    @property
    def capacity(self) -> int:
        return self._scheduler.capacity

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_unfinished

    def vocabulary(self) -> None:
        """Nobody is shown tokens."""

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:  # noqa: ARG002
        options = job.encode
        assert options is not None  # noqa: S101 - `check_task` has seen it
        dimensions = check_dimensions(options, self.model)
        check_rows(len(job.inputs), dimensions)
        encoded: list[EncodedInput]
        if options.task == "score":
            texts = [one for one in job.inputs if isinstance(one, str)]
            queries = options.queries * (len(texts) if len(options.queries) == 1 else 1)
            pairs = list(zip(queries, texts, strict=True))
            encoded = self._encoder.tokenize_pairs(pairs, truncate=options.truncate)
        else:
            encoded = self._encoder.tokenize(
                job.inputs, prompt_name=options.prompt_name, truncate=options.truncate
            )
        tokens = sum(len(one.ids) for one in encoded)
        return Prepared(job.id, tokens, EncodingRequest(job.id, encoded, dimensions))

    def add(self, prepared: Prepared) -> None:
        self._scheduler.add(prepared.handle)

    def abort(self, job_id: str) -> None:
        self._scheduler.abort(job_id)

    def step(self, only: str | None = None) -> list[StepOutput]:
        return self._scheduler.step(only)

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()
