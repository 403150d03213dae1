"""What the worker asks of an engine, so that another one can stand here.

`prepare` is called from any thread and may take its time (it tokenizes); everything else is
called from the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from rose.engine_records import TokenLogprob
from rose.protocol import JobSpec

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    context_tokens: int
    max_bytes_per_token: int | None
    """Most bytes of prompt text one token can stand for, where that is certain."""
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked and tokenized job; `handle` is the engine's own."""

    job_id: str
    prompt_tokens: int
    handle: Any


@dataclass(slots=True)
class Output:
    """What a step brought for one job; `finish_reason` with the last tokens, or with none."""

    job_id: str
    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    logprobs: Sequence[TokenLogprob] | None = None
    """one for each of `token_ids`, if the job asks for them"""
    error: str | None = None
    """instead of a reason to finish: why the job cannot go on, a mistake of its own parameters"""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals count from the start. `phase_s`: the last step's seconds by phase."""

    batch_sequences: int
    step_sequences: int
    kv_usage_ratio: float
    preemptions_total: int
    prefix_query_tokens_total: int
    prefix_hit_tokens_total: int
    phase_s: dict[str, float]


class Engine(Protocol):
    @property
    def model(self) -> ModelInfo: ...

    @property
    def capacity(self) -> int:
        """Slots: jobs it decodes at once."""

    @property
    def has_work(self) -> bool: ...

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        """Check and tokenize; `generated_ids` were logged by an earlier worker.

        Raises:
            InvalidRequest: this model cannot run it.
        """

    def add(self, prepared: Prepared) -> None: ...

    def abort(self, job_id: str) -> None:
        """Free its slot. Unknown ids are ignored: it may have finished just now."""

    def step(self, only: str | None = None) -> list[Output]:
        """The next tokens of every job, or of one while the others pause."""

    def stats(self) -> EngineStats: ...


def finish_reason(value: str | None) -> FinishReason | None:
    if value is not None and value not in ("eos", "stop", "length"):
        raise ValueError(f"the engine ended a request with the unknown reason {value!r}")
    return cast(FinishReason | None, value)
