"""What a scheduler tells its caller."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step made of one request.

    `index` is the position of the first of `token_ids` among the request's generated tokens.
    `text` is the text that became certain, `finish_reason` "eos", "stop" or "length" at the end;
    or "error", with the reason in `error`. `logprobs`, one for each of `token_ids`, are there for
    a request that asks for them.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds that the phases of the last step took.

    On CUDA the forward pass is asynchronous: waiting for its results counts as sampling.
    """

    schedule: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    postprocess: float = 0.0


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges of this moment, and counters since the scheduler was made."""

    running: int
    waiting: int
    capacity: int
    kv_blocks_total: int
    kv_blocks_used: int
    preemptions: int
    prompt_tokens: int
    generated_tokens: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    batch_size: int
    step_times: StepTimes
