"""Encoders behind the worker's protocol."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from rose.engine_records import SchedulerStats, StepOutput
from rose.errors import ConfigurationError
from rose.memory import gigabytes, used_memory
from rose.protocol import JobSpec
from rose_worker.engine import ModelInfo, Prepared, check_dimensions, check_rows
from rose_worker.preparation import Preparer
from rose_worker.prompts import encoded_inputs
from rose_worker.rose_engine import set_threads
from rose_worker.settings import WorkerSettings
from roseinfer import native
from roseinfer.encoders.encoder import Encoder
from roseinfer.encoders.scheduler import AnyEncoder, EncodingRequest, EncodingScheduler
from roseinfer.encoders.tokens import unpacked

log = logging.getLogger("rose.engine")


EncoderTask = Literal["embed", "score"]


def load(
    settings: WorkerSettings, task: EncoderTask, preparer: Preparer | None = None
) -> "EncoderEngine":
    """With a model in this process. Raises: ModelNotFound, UnsupportedModel, ConfigurationError"""
    model = model_of(settings, task)
    set_threads(settings.torch_threads)
    encoder = Encoder(
        model,
        task,
        tokenizer=settings.tokenizer,
        device=settings.device,
        dtype=settings.dtype,
        weights=settings.weights,
        max_tokens=settings.max_context,
    )
    decoder = f"compiled ({native.build_name()})" if encoder.is_compiled else "torch"
    return EncoderEngine(
        encoder,
        task,
        settings.max_batch_size,
        settings.max_step_tokens,
        preparer,
        decoder=decoder,
    )


def model_of(settings: WorkerSettings, task: EncoderTask) -> str:
    """Raises: ConfigurationError"""
    if settings.model is None:
        raise ConfigurationError(f"ROSE_TASK={task} needs a model (ROSE_MODEL)")
    return settings.model


class EncoderEngine:
    def __init__(
        self,
        encoder: AnyEncoder,
        task: EncoderTask,
        capacity: int,
        max_step_tokens: int,
        preparer: Preparer | None = None,
        *,
        engine: str = "rose",
        decoder: str = "torch",
    ) -> None:
        """`capacity`: jobs at a time. `preparer` learns how to tokenize them. `engine`, `decoder`:
        as `ModelInfo` has them."""
        self._encoder = encoder
        if preparer is not None:
            preparer.load_inputs(asdict(encoder.tokenizer.rules))
        log.info(
            "the model is loaded: %s of memory; a text has at most %d tokens, and its answer %d "
            "numbers",
            gigabytes(used_memory()),
            encoder.max_tokens,
            encoder.width,
        )
        self._scheduler = EncodingScheduler(encoder, capacity, max_step_tokens)
        self.model = ModelInfo(
            name=encoder.name,
            context_tokens=encoder.max_tokens,
            max_bytes_per_token=None,
            device=encoder.device,
            dtype=encoder.dtype,
            decoder=decoder,
            fingerprint=encoder.fingerprint,
            chat=False,
            engine=engine,
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

    def prepare(
        self,
        job: JobSpec,
        generated_ids: Sequence[int],  # noqa: ARG002
        inputs: bytes | None = None,
    ) -> Prepared:
        options = job.encode
        assert options is not None  # noqa: S101 - `check_task` has seen it
        dimensions = check_dimensions(options, self.model)
        check_rows(len(job.inputs), dimensions)
        if inputs is None:
            encoded = encoded_inputs(job, self._encoder.tokenizer)
        else:
            encoded = unpacked(inputs)
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
