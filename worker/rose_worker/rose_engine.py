"""roseinfer's own engine behind the worker's protocol, and a job as one of its sessions."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rose.cores import usable_cores
from rose.engine_records import SchedulerStats, StepOutput
from rose.errors import InvalidParameter
from rose.memory import gigabytes, used_memory
from rose.protocol import JobSpec, most_prompt_logprobs
from rose_worker.engine import ModelInfo, Prepared, check_no_adapter
from rose_worker.preparation import Preparer
from rose_worker.prompts import prompt_ids
from rose_worker.settings import WorkerSettings, chosen_formats
from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.gpu.options import GpuOptions
from roseinfer.kv_cache.second_tier import SecondTierOptions
from roseinfer.sessions.factory import SessionFactory
from roseinfer.sessions.session import InferenceSession
from roseinfer.text.answer_formats import answer_formats


def session_of(
    job: JobSpec, generated_ids: Sequence[int], factory: SessionFactory
) -> InferenceSession:
    """The session of a job of which `generated_ids` are logged.

    Raises: InvalidParameter, PromptTooLong
    """
    session = factory.new_session(
        prompt_ids(job, factory.tokenizer),
        request_id=job.id,
        # The same seed wherever the job goes next.
        params=job.sampling.seeded(_seed_of(job.id)),
        generated_ids=generated_ids,
        cache_salt=job.cache_salt,
    )
    if job.sampling.prompt_logprobs:
        _check_one_event_holds(session)
    return session


def formats_of(
    settings: WorkerSettings, factory: SessionFactory, preparer: Preparer | None
) -> dict[str, Any]:
    """The fields of a `ModelInfo` that say how the model writes calls and thoughts, and what its
    chat template reads. From here on `preparer`, if there is one, prepares jobs.

    Raises: UnsupportedModel: tokenizer or template take too much.
    """
    if preparer is None:
        found = answer_formats(factory.tokenizer)
    else:
        found = preparer.load(factory.tokenizer, factory.vocab_size, factory.eos_token_ids)
    variables = tuple(found["template_variables"])  # a list, where JSON has brought it
    return found | {"template_variables": variables} | chosen_formats(settings)


def _check_one_event_holds(session: InferenceSession) -> None:
    """Raises: InvalidParameter"""
    top = session.params.top_logprobs
    most = most_prompt_logprobs(top)
    if session.prompt_length > most:
        raise InvalidParameter(
            f"prompt_logprobs: the prompt has {session.prompt_length} tokens, and with "
            f"top_logprobs={top} an event holds those of {most}: ask for fewer, or send less",
            param="prompt_logprobs",
        )


def _seed_of(job_id: str) -> int:
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:7], "big")


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
            second_tier=_second_tier(settings),
            own_drafts=settings.speculation,
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
        self.model = _model_info(settings, engine, preparer)

    @property
    def second_tier(self) -> str:
        """What the second tier of the prefix cache is, or why there is none; "" if none is set."""
        return self._engine.second_tier.description

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


def _second_tier(settings: WorkerSettings) -> SecondTierOptions | None:
    if not settings.second_tier_bytes:
        return None
    folder = Path(settings.second_tier_folder) if settings.second_tier_folder else None
    return SecondTierOptions(settings.second_tier_bytes, folder, settings.second_tier_age_s)


def _log_memory(engine: InferenceEngine) -> None:
    cache = engine.cache
    if engine.device.type == "cuda":
        taken = torch.cuda.memory_allocated(engine.device) - cache.size_bytes
    else:
        taken = used_memory()  # of the cache nothing is, until it fills
    log.info(
        "the model is loaded: %s of memory; its KV cache takes up to %s more and holds %d tokens%s "
        "(ROSE_KV_CACHE_TOKENS); prompt and output of a job have at most %d",
        gigabytes(taken),
        gigabytes(cache.size_bytes),
        cache.pool.total * cache.block_size,
        f" and {states} states" if (states := cache.pool.states.total) else "",
        engine.context_length,
    )


def _model_info(
    settings: WorkerSettings, engine: InferenceEngine, preparer: Preparer | None
) -> ModelInfo:
    return ModelInfo(
        name=engine.model_name,
        context_tokens=engine.context_length,
        max_bytes_per_token=engine.max_bytes_per_token,
        device=str(engine.device),
        dtype=str(engine.model.dtype).removeprefix("torch."),
        fingerprint=engine.fingerprint,
        decoder=engine.decoder_description,
        chat=engine.has_chat_template,
        **formats_of(settings, engine, preparer),
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
