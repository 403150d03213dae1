"""roseinfer's own engine behind the worker's protocol."""

import logging
from collections.abc import Sequence

import torch

from rose.cores import usable_cores
from rose.engine_records import SchedulerStats, StepOutput
from rose.memory import gigabytes, used_memory
from rose.protocol import JobSpec
from rose_worker.engine import ModelInfo, Prepared, check_no_adapter
from rose_worker.preparation import Preparer
from rose_worker.sessions import session_of, tool_format_of
from rose_worker.settings import WorkerSettings
from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.gpu.options import GpuOptions

log = logging.getLogger("rose.engine")


class RoseEngine:
    def __init__(self, settings: WorkerSettings, preparer: Preparer | None = None) -> None:
        """Load the model. `preparer` learns how to prepare its jobs.

        Raises: ModelNotFound, UnsupportedModel, ConfigurationError
        """
        set_threads(settings.torch_threads)
        self._engine = engine = InferenceEngine(
            settings.model,
            settings.tokenizer,
            device=settings.device,
            dtype=settings.dtype,
            weights=settings.weights,
            kv_cache_tokens=settings.kv_cache_tokens,
            max_context=settings.max_context,
            gpu=GpuOptions(
                attention=settings.attention,
                cuda_graphs=settings.cuda_graphs,
                memory_utilization=settings.gpu_memory_utilization,
                max_batch_size=settings.max_batch_size,
                max_step_tokens=settings.max_step_tokens,
            ),
        )
        _log_memory(engine)
        self._scheduler = OnlineScheduler(
            engine,
            settings.max_batch_size,
            settings.max_step_tokens,
            keep_finished=False,
            itl_target_ms=settings.itl_target_ms,
            speculation=settings.speculation,
        )
        self.model = _model_info(engine, preparer)

    @property
    def capacity(self) -> int:
        return self._scheduler.max_batch_size

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_unfinished()

    def vocabulary(self) -> list[bytes] | None:
        return self._engine.token_bytes()

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        check_no_adapter(job, self.model)
        session = session_of(job, generated_ids, self._engine)
        return Prepared(job.id, session.prompt_length, session)

    def add(self, prepared: Prepared) -> None:
        self._scheduler.add_session(prepared.handle)

    def abort(self, job_id: str) -> None:
        self._scheduler.abort(job_id)

    def step(self, only: str | None = None) -> list[StepOutput]:
        return self._scheduler.step(only)

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()


def _log_memory(engine: InferenceEngine) -> None:
    cache = engine.cache
    if engine.device.type == "cuda":
        taken = torch.cuda.memory_allocated(engine.device) - cache.size_bytes
    else:
        taken = used_memory()  # of the cache nothing is, until it fills
    log.info(
        "the model is loaded: %s of memory; its KV cache takes up to %s more and holds %d tokens "
        "(ROSE_KV_CACHE_TOKENS); prompt and output of a job have at most %d",
        gigabytes(taken),
        gigabytes(cache.size_bytes),
        cache.pool.total * cache.block_size,
        engine.context_length,
    )


def _model_info(engine: InferenceEngine, preparer: Preparer | None) -> ModelInfo:
    return ModelInfo(
        name=engine.model_name,
        context_tokens=engine.context_length,
        max_bytes_per_token=engine.max_bytes_per_token,
        device=str(engine.device),
        dtype=str(engine.model.dtype).removeprefix("torch."),
        fingerprint=engine.fingerprint,
        decoder=engine.decoder_description,
        chat=engine.has_chat_template,
        tool_format=tool_format_of(engine, preparer),
        has_vocabulary=engine.tokenizer is not None,
    )


def set_threads(count: int | None) -> None:
    """Compute with `count` threads; None: torch's number, limited to the available cores.
    Threads that wait for a core delay those that wait for them."""
    before, cores = torch.get_num_threads(), usable_cores()
    if count is None and before > cores:
        log.warning("%d threads instead of %d: there are no more cores to use", cores, before)
        count = cores
    if count is not None:
        torch.set_num_threads(count)
