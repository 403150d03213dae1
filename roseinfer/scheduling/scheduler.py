"""Continuous batching: requests come and go between steps, each of which computes some tokens.

The planner decides what a step computes. The scheduler launches the step and reports its results.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, ParamSpec, TypeVar

import torch

from rose.engine_records import (
    NO_SECOND_TIER,
    SchedulerStats,
    StepOutput,
    StepTimes,
    TokenLogprob,
    text_lengths,
)
from rose.errors import InvalidParameter
from rose.sampling import SamplingParams
from roseinfer.execution.engine_core import EngineCore
from roseinfer.sampling.sampler import SampledToken, SampledTokens
from roseinfer.scheduling.options import check_limits, itl_target_s, overlaps
from roseinfer.scheduling.planner import Planner
from roseinfer.scheduling.prefill_pace import PrefillPace, StepCosts, StepSize
from roseinfer.scheduling.speculation import Speculation, accept
from roseinfer.sessions.session import Chunk, InferenceSession

_logger = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _LaunchedStep:
    """A step on the device whose results have not been collected."""

    chunks: list[Chunk]
    sampled: SampledTokens
    size: StepSize
    prefill: bool
    """not decoding alone"""
    began: float


@dataclass(slots=True)
class _Counters:
    prompt_tokens: int = 0
    generated_tokens: int = 0
    accepted_tokens: int = 0
    batch_size: int = 0


class Scheduler:
    """The batch of one engine. Not thread-safe: one thread calls everything.

    Several schedulers may share an engine; they then share its KV cache.
    """

    _streams: ClassVar[bool]
    """Tokens are awaited one by one, so their latency matters."""

    def __init__(
        self,
        engine: EngineCore,
        max_batch_size: int = 32,
        max_step_tokens: int = 512,
        *,
        keep_finished: bool = True,
        overlap: bool | None = None,
        itl_target_ms: float | None = None,
        speculation: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """At most `max_batch_size` sessions and `max_step_tokens` tokens share a step.

        A token for each session always fits: a smaller `max_step_tokens` counts as that many.
        With `keep_finished` False, a request is forgotten as soon as its last output was returned;
        otherwise its response stays until `pop_response`.

        With `overlap`, a step is launched before the results of the last one are collected, and
        `step` returns the outputs of the step before it. None overlaps on a GPU only.

        `itl_target_ms` is for the inter-token latency of requests that decode while others' prompts
        are computed, see `PrefillPace`. 0 is no target. None is 2.25 decode steps of all on CPU,
        and no target on a GPU or for an `OfflineScheduler`. `clock` tells seconds.

        With `speculation` a step may bring a request several tokens: see `Speculation`. They are
        the same tokens. It needs the compiled decoder and is left off with any other.
        """
        check_limits(max_batch_size, max_step_tokens, itl_target_ms)
        overlap = overlaps(engine, overlap)
        self.engine = engine
        self._steps_ahead = 1 if overlap else 0
        self._keep_finished = keep_finished
        self._pool = engine.cache.pool
        self._clock, self._collected_at = clock, clock()
        self._costs = StepCosts()
        pace = PrefillPace(self._costs, itl_target_s(engine, itl_target_ms, streams=self._streams))
        speculates = speculation and engine.batch_invariant and not overlap
        self._speculation = (
            Speculation(self._costs, self._pool, engine.draft_head, clock) if speculates else None
        )
        self._planner = Planner(
            self._pool, pace, self._speculation, max_batch_size, max_step_tokens
        )
        self._sessions: dict[str, InferenceSession] = {}
        self._ended: list[InferenceSession] = []  # finished before their first step
        self._launched: deque[_LaunchedStep] = deque()  # oldest first
        self._counters = _Counters()
        self._seconds: dict[str, float] = {}

    def add_request(
        self,
        prompt: str | Sequence[int],
        *,
        request_id: str | None = None,
        params: SamplingParams | None = None,
        generated_ids: Sequence[int] = (),
    ) -> str:
        """Queue a request and return its id; no token is computed before `step`.

        `generated_ids` were already produced elsewhere: the request goes on with the next token.
        Raises InvalidParameter and PromptTooLong.
        """
        session = self.engine.new_session(
            prompt, request_id=request_id, params=params, generated_ids=generated_ids
        )
        return self.add_session(session)

    def add_session(self, session: InferenceSession) -> str:
        """Queue a session made by `engine.new_session`, which may have run in another thread.

        Raises InvalidParameter if its request id is in use.
        """
        if session.request_id in self._sessions:
            raise InvalidParameter(f"request_id={session.request_id!r} is already in use")
        self._sessions[session.request_id] = session
        if self._speculation is not None:
            self._speculation.begin(session)
        self._counters.prompt_tokens += session.prompt_length
        if session.finished:
            self._ended.append(session)
        else:
            self._planner.waiting.append(session)
        return session.request_id

    def step(self, only: str | None = None) -> list[StepOutput]:
        """Compute the next tokens of the batch; returns what is new, request by request.

        With `only`, the id of a request, nothing else is computed in this step; if steps are still
        under way, it only brings their results.
        """
        self._seconds.clear()
        if only is not None and self._launched:
            return self._collect(keep=0)
        chunks = self._timed("schedule", self._plan, only)
        launched = self._launch(chunks)
        return self._collect(keep=self._steps_ahead if launched and only is None else 0)

    def _plan(self, only: str | None) -> list[Chunk]:
        if only is None:
            return self._planner.plan()
        return self._planner.plan_alone(self._session(only), self._sessions.values())

    def _timed(
        self,
        phase: str,
        work: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        started = time.perf_counter()
        result = work(*args, **kwargs)
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - started
        return result

    def advance(self) -> list[StepOutput]:
        """`step` for callers that do nothing else: raises RuntimeError where it would idle."""
        outputs = self.step()
        if not outputs and not self._planner.running and self._planner.waiting:
            raise RuntimeError("no request can start: another scheduler holds the KV cache")
        return outputs

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks at once; False if it is unknown or finished."""
        session = self._sessions.get(request_id)
        if session is None or (session.finished and session not in self._ended):
            return False
        del self._sessions[request_id]
        session.release_blocks(self._pool)
        if session in self._ended:
            self._ended.remove(session)
        else:
            self._planner.remove(session)
        return True

    def has_unfinished(self) -> bool:
        """True while `step` has something to do or to report."""
        planner = self._planner
        return bool(planner.running or planner.waiting or self._ended or self._launched)

    def is_finished(self, request_id: str) -> bool:
        return self._session(request_id).finished

    def pop_response(self, request_id: str) -> str:
        """The text of a finished request, which is then forgotten."""
        session = self._session(request_id)
        if not session.finished:
            raise InvalidParameter(f"request {request_id!r} is not finished: abort it instead")
        if session in self._ended:
            self._ended.remove(session)
        del self._sessions[request_id]
        return session.text

    @property
    def free_slots(self) -> int:
        """Requests that could be added and find a place in the batch."""
        planner = self._planner
        return max(0, planner.max_batch_size - len(planner.running) - len(planner.waiting))

    @property
    def max_batch_size(self) -> int:
        return self._planner.max_batch_size

    @property
    def max_step_tokens(self) -> int:
        """Less than was asked for where a step had no memory."""
        return self._planner.max_step_tokens

    def stats(self) -> SchedulerStats:
        counters, planner = self._counters, self._planner
        return SchedulerStats(
            running=len(planner.running),
            waiting=len(planner.waiting),
            capacity=planner.max_batch_size,
            kv_blocks_total=self._pool.total,
            kv_blocks_used=self._pool.used,
            states_total=self._pool.states.total,
            states_used=self._pool.states.used,
            preemptions=planner.preemptions,
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            drafted_tokens=self._speculation.drafted if self._speculation is not None else 0,
            accepted_tokens=counters.accepted_tokens,
            prefix_query_tokens=planner.prefix_query_tokens,
            prefix_hit_tokens=planner.prefix_hit_tokens,
            second_tier=self._pool.tier.stats() if self._pool.tier else NO_SECOND_TIER,
            batch_size=counters.batch_size,
            step_times=StepTimes(**self._seconds),
        )

    def _session(self, request_id: str) -> InferenceSession:
        session = self._sessions.get(request_id)
        if session is None:
            raise InvalidParameter(f"there is no request {request_id!r}")
        return session

    # Launching steps and collecting their results

    def _launch(self, chunks: list[Chunk]) -> bool:
        """Launch a step and count its tokens as computed; False if there is none.

        The device may still be at work on them, but it works in order: a step that is launched
        later finds them computed.
        """
        if not chunks:
            return False
        after = self._launched[-1].sampled if self._launched else None
        size, began = StepSize.of(chunks), self._clock()
        try:
            logits = self._timed("forward", self.engine.forward, chunks, after)
            sampled = self._timed("sample", self.engine.sample, logits)
        except torch.OutOfMemoryError:
            tokens = sum(chunk.count for chunk in chunks)
            if tokens == 1:
                raise
            self._shrink(tokens)
            return False
        computed = 0
        for chunk in chunks:
            count = chunk.count - len(chunk.drafts)  # which may be wrong
            chunk.session.computed += count
            computed += count
        for session in sampled.sessions:
            session.ahead += 1
        prefill = computed > len(chunks)
        self._launched.append(_LaunchedStep(chunks, sampled, size, prefill, began))
        return True

    def _shrink(self, tokens: int) -> None:
        """The device had no memory for a step of `tokens` tokens: halve the steps from now on.
        Nothing of the failed step was counted."""
        self._planner.shrink(tokens // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        _logger.warning(
            "out of memory in a step of %d tokens: steps have at most %d from now on; lower "
            "max_step_tokens, or leave more memory beside the KV cache",
            tokens,
            self.max_step_tokens,
        )

    def _collect(self, keep: int) -> list[StepOutput]:
        """The outputs of the launched steps, all but the last `keep`."""
        outputs = [self._report_ended(session) for session in self._ended]
        self._ended.clear()
        self._counters.batch_size = 0
        while len(self._launched) > keep:
            step = self._launched.popleft()
            sampled = self._timed("sample", step.sampled.wait)
            self._record_cost(step)
            outputs += self._timed("postprocess", self._postprocess, step.chunks, sampled)
        return outputs

    def _record_cost(self, step: _LaunchedStep) -> None:
        """A device that was still at work on the last step began later than the launch."""
        began, self._collected_at = max(step.began, self._collected_at), self._clock()
        self._costs.record(step.size, self._collected_at - began, prefill=step.prefill)

    def _postprocess(
        self,
        chunks: Sequence[Chunk],
        sampled: Mapping[InferenceSession, int | Iterator[SampledToken]],
    ) -> list[StepOutput]:
        """Append sampled tokens, offer full blocks to later requests, drop finished sessions."""
        outputs = []
        sessions = self._sessions
        self._counters.batch_size = len(chunks)
        for session in sampled:
            session.ahead -= 1
        for chunk in chunks:
            session = chunk.session
            if session.finish_reason or sessions.get(session.request_id) is not session:
                continue  # it ended, or was aborted, while this step was under way
            drawn = sampled.get(session)
            if drawn is None:
                session.register_full_blocks(self._pool)
            elif isinstance(drawn, int):
                outputs.append(self._append(session, drawn))
            else:
                outputs.append(self._append_in_turn(chunk, drawn))
            if chunk.hidden is not None:
                chunk.keep_hidden(chunk.hidden)
        self._counters.generated_tokens += sum([len(output.token_ids) for output in outputs])
        if any(output.finish_reason for output in outputs):
            self._planner.drop_finished()
        return outputs

    def _append(self, session: InferenceSession, token_id: int) -> StepOutput:
        """The next token of a session without drafts, which wants no log-probabilities."""
        known = len(session.tokens)
        text = session.append(token_id)
        taken = (token_id,) if len(session.tokens) > known else ()  # else its grammar allows none
        session.register_full_blocks(self._pool)
        index = known - session.prompt_length
        output = StepOutput(session.request_id, index, taken, text if taken else "", None)
        if session.finish_reason is not None:
            self._finish(session, output)
        return output

    def _append_in_turn(self, chunk: Chunk, sampled: Iterator[SampledToken]) -> StepOutput:
        session, index = chunk.session, chunk.session.num_generated
        scores = session.prompt_logprobs if index == 0 else None
        taken, texts = accept(chunk, sampled)  # none where the grammar allows none
        if chunk.drafts and taken:
            session.accept_drafts(self._pool, len(taken) - 1)
            self._counters.accepted_tokens += len(taken) - 1
        session.register_full_blocks(self._pool)
        ids = tuple([token.token_id for token in taken])
        output = StepOutput(session.request_id, index, ids, "".join(texts), None)
        if session.params.logprobs:
            output.logprobs, output.prompt_logprobs = _logprobs(taken), scores
        if len(texts) > 1:
            output.text_lengths = text_lengths(texts)
        if session.finish_reason is not None:
            self._finish(session, output)
        return output

    def _finish(self, session: InferenceSession, output: StepOutput) -> None:
        session.release_blocks(self._pool)
        self._forget(session)
        output.finish_reason, output.error = session.finish_reason, session.error
        output.cached_tokens, output.stop = session.cached_tokens, session.stop

    def _report_ended(self, session: InferenceSession) -> StepOutput:
        self._forget(session)
        index, reason = session.num_generated, session.finish_reason
        return StepOutput(session.request_id, index, (), "", reason, stop=session.stop)

    def _forget(self, session: InferenceSession) -> None:
        if not self._keep_finished:
            del self._sessions[session.request_id]


def _logprobs(taken: Sequence[SampledToken]) -> tuple[TokenLogprob, ...] | None:
    return tuple(token.logprob for token in taken if token.logprob is not None) or None


class OnlineScheduler(Scheduler):
    """The scheduler of a service: requests come and go while others are being decoded."""

    _streams = True


class OfflineScheduler(Scheduler):
    """The scheduler of a batch job: add everything, then `run` to the end."""

    _streams = False

    def run(self) -> dict[str, str]:
        """Step until nothing is unfinished; the text of every request by id, in order of arrival.

        Raises RuntimeError if another scheduler on the same engine keeps the whole KV cache.
        """
        while self.has_unfinished():
            self.advance()
        return {request_id: session.text for request_id, session in self._sessions.items()}
