"""vLLM behind the worker's protocol.

A request is a session of roseinfer on this side: it turns token ids into text and knows when the
request ends. On vLLM's side it is a prompt of token ids, those that were generated before included.

    job -> session -> vLLM: prompt ids, extra_args -> Sampling -> token id -> session -> StepOutput
"""

import atexit
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm import SamplingParams as VllmParams
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind

from rose.engine_records import (
    SchedulerStats,
    StepOutput,
    StepTimes,
    TokenLogprob,
    text_lengths,
)
from rose.errors import InvalidParameter
from rose.protocol import JobSpec
from rose.sampling import MAX_TOP_LOGPROBS, SamplingParams
from rose_worker.engine import Prepared
from rose_worker.preparation import Preparer
from rose_worker.rose_engine import session_of
from rose_worker.settings import WorkerSettings
from rose_worker.vllm.adapters import Adapter
from rose_worker.vllm.llm import start_llm, stop_llm
from rose_worker.vllm.model import model_info, session_factory
from rose_worker.vllm.sampling import extra_args
from rose_worker.vllm.stats import Stats
from roseinfer.sampling.sampler import MIN_LOGPROB
from roseinfer.sessions.session import InferenceSession


@dataclass(frozen=True, slots=True)
class _Request:
    session: InferenceSession
    lora: Any
    """vLLM's name for its adapter; None for the model itself"""


class VllmEngine:
    def __init__(
        self,
        settings: WorkerSettings,
        config: Any,
        adapters: Mapping[str, Adapter],
        preparer: Preparer | None = None,
    ) -> None:
        """Load the model of a `VllmConfig` and its adapters, and try it.

        Raises: ModelNotFound, UnsupportedModel, and what vLLM raises.
        """
        self._stats = Stats(config)
        self._factory = session_factory(config)
        self._llm = start_llm(config, self._stats)
        atexit.register(self.close)
        self.capacity: int = config.scheduler_config.max_num_seqs
        self.model = model_info(settings, config, self._factory, adapters, preparer)
        self._loras = {
            name: LoRARequest(name, adapter.number, str(adapter.folder))
            for name, adapter in adapters.items()
        }
        self._running: dict[str, _Request] = {}
        self._paused: dict[str, _Request] = {}
        """known to the worker and not to vLLM, while another job runs alone"""
        self._ended: list[InferenceSession] = []
        """finished before their first step"""
        self._try()

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._paused or self._ended)

    def vocabulary(self) -> list[bytes] | None:
        return self._factory.token_bytes()

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        request = _Request(session_of(job, generated_ids, self._factory), self._lora(job.adapter))
        return Prepared(job.id, request.session.prompt_length, request)

    def add(self, prepared: Prepared) -> None:
        request: _Request = prepared.handle
        self._stats.prompt_tokens += request.session.prompt_length
        if request.session.finished:
            self._ended.append(request.session)
        else:
            self._begin(request)

    def abort(self, job_id: str) -> None:
        self._ended = [session for session in self._ended if session.request_id != job_id]
        self._paused.pop(job_id, None)
        if self._running.pop(job_id, None) is not None:
            self._llm.abort_request([job_id])

    def step(self, only: str | None = None) -> list[StepOutput]:
        outputs = [_ended_before(session) for session in self._ended]
        self._ended.clear()
        self._arrange(only)
        self._stats.batch_size = 0
        if self._running:
            began = time.perf_counter()
            results = self._llm.step()
            stepped = time.perf_counter()
            outputs += [self._take(result) for result in results if result.outputs]
            self._stats.batch_size = len(results)
            self._stats.step_times = StepTimes(
                forward=stepped - began, postprocess=time.perf_counter() - stepped
            )
        return outputs

    def stats(self) -> SchedulerStats:
        return self._stats.snapshot(len(self._running))

    def close(self) -> None:
        """End the processes of its executor, which is no failure any more. Otherwise they end with
        this process."""
        atexit.unregister(self.close)
        stop_llm(self._llm)

    def _try(self) -> None:
        """Run what would otherwise be compiled or loaded during the first jobs' steps: each
        adapter, and several shapes."""
        params = SamplingParams(max_new_tokens=2, temperature=1.0, seed=0, logprobs=True)
        for lora in (None, *self._loras.values()):
            for lengths in ((1,), (3, 5)):
                for length in lengths[: self.capacity]:
                    session = self._factory.new_session(
                        [0] * length, request_id=f"try-{length}", params=params
                    )
                    self._begin(_Request(session, lora))
                while self._running:
                    self.step()
        self._stats.forget()

    def _lora(self, name: str | None) -> Any:
        """Raises: InvalidParameter: there is no such adapter."""
        if name is None:
            return None
        if name not in self._loras:
            known = ", ".join(self._loras) or "none"
            raise InvalidParameter(
                f"adapter: there is no {name!r} here, only: {known}", param="adapter"
            )
        return self._loras[name]

    def _begin(self, request: _Request) -> None:
        session = request.session
        self._running[session.request_id] = request
        left = min(
            session.params.max_new_tokens - session.num_generated,
            session.context_length - len(session.tokens),
        )
        self._llm.add_request(
            session.request_id,
            tokens_input(list(session.tokens), cache_salt=session.cache_salt or None),
            VllmParams(
                temperature=0.0,  # `Sampling` leaves nothing to draw
                max_tokens=left,
                ignore_eos=True,  # the session knows its ends
                stop_token_ids=sorted(session.ends),
                detokenize=False,
                logprobs=_wanted_logprobs(session),
                prompt_logprobs=_wanted_logprobs(session) if session.lacks_scores else None,
                flat_logprobs=session.params.logprobs,
                output_kind=RequestOutputKind.DELTA,
                extra_args=extra_args(session.params, session.prompt_length),
            ),
            lora_request=request.lora,
        )

    def _arrange(self, only: str | None) -> None:
        """Withdraw all requests but `only` from vLLM, or bring them back.

        A request that comes back resumes, and mostly finds its keys and values in the cache.
        """
        if only is None:
            for request in self._paused.values():
                self._begin(request)
            self._paused.clear()
            return
        for job_id in [job_id for job_id in self._running if job_id != only]:
            self._llm.abort_request([job_id])
            self._paused[job_id] = self._running.pop(job_id)
        if only in self._paused:
            self._begin(self._paused.pop(only))

    def _take(self, result: Any) -> StepOutput:
        session = self._running[result.request_id].session
        completion = result.outputs[0]
        if session.cached_tokens is None and result.num_cached_tokens is not None:
            session.cached_tokens = min(result.num_cached_tokens, session.prompt_length)
        if result.prompt_logprobs:  # of the first token there is none, which has a place there
            flat = result.prompt_logprobs
            session.score(1, _logprobs(flat, flat.start_indices[1:], session))
        index, texts = session.num_generated, list[str]()
        scores = session.prompt_logprobs if index == 0 else None
        for token_id in completion.token_ids:
            session.check(token_id)
            texts.append(session.append(token_id))
            if session.finished:
                break
        taken = session.num_generated - index
        texts = texts[:taken]
        logprobs = None
        if session.params.logprobs:
            flat = completion.logprobs
            logprobs = _logprobs(flat, flat.start_indices[:taken], session)
        self._stats.generated_tokens += taken
        if session.finished:
            del self._running[session.request_id]
            if not result.finished:
                self._llm.abort_request([session.request_id])
        return StepOutput(
            session.request_id,
            index,
            tuple(completion.token_ids[:taken]),
            "".join(texts),
            session.finish_reason,
            logprobs,
            session.error,
            session.cached_tokens if session.finished else None,
            scores,
            text_lengths(texts),
            session.stop,
        )


def _ended_before(session: InferenceSession) -> StepOutput:
    return StepOutput(
        session.request_id,
        session.num_generated,
        (),
        "",
        session.finish_reason,
        stop=session.stop,
    )


def _wanted_logprobs(session: InferenceSession) -> int | None:
    """How many likeliest tokens vLLM lists. Always the maximum, as in roseinfer's own engine: with
    another count ties could be ordered in another way."""
    if not session.params.logprobs:
        return None
    return MAX_TOP_LOGPROBS if session.params.top_logprobs else 0


def _logprobs(
    flat: Any, starts: Sequence[int], session: InferenceSession
) -> tuple[TokenLogprob, ...]:
    """Of the tokens whose entries begin at `starts`. vLLM lists a token's own entry first, then
    the likeliest ones."""
    logprobs = []
    for start in starts:
        own, *_ = (max(value, MIN_LOGPROB) for value in flat.logprobs[start : start + 1])
        first, end = start + 1, start + 1 + session.params.top_logprobs
        values = (max(value, MIN_LOGPROB) for value in flat.logprobs[first:end])
        logprobs.append(
            TokenLogprob(own, tuple(zip(flat.token_ids[first:end], values, strict=True)))
        )
    return tuple(logprobs)
