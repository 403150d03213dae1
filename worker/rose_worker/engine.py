"""The interface between the worker and its engine.

Any thread may call `prepare`, which tokenizes and may be slow. Only the engine thread calls the
other methods. An engine reports records of `rose.engine_records`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rose.engine_records import SchedulerStats, StepOutput
from rose.errors import InvalidParameter
from rose.protocol import JobSpec
from rose.protocol.announced_model import MODEL_FIELDS, AnnouncedModel


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    context_tokens: int
    max_bytes_per_token: int | None
    """the most bytes of prompt text that a token can stand for; None if that is not certain"""
    device: str
    dtype: str
    decoder: str = "none"
    """which decoder computes the model, and why not the compiled one"""
    fingerprint: str = ""
    """of weights and their format, tokenizer and dtype: workers with the same one may continue with
    each other's texts; empty if it is not known"""
    chat: bool = True
    """It takes chat messages: there is a chat template."""
    tool_format: str = ""
    """how its chat template writes calls of functions, such as "hermes"; "" if it does not, or in a
    way that is not known"""
    has_vocabulary: bool = False
    engine: str = "rose"
    """which engine serves it: a value of the setting"""
    adapters: tuple[str, ...] = ()
    """names of the LoRA adapters that a job may ask for; no whitespace in them"""

    @property
    def announced(self) -> AnnouncedModel:
        """What is announced to submitters and operators."""
        return AnnouncedModel(**{name: getattr(self, name) for name in MODEL_FIELDS})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked and tokenized job. Only the engine reads `handle`."""

    job_id: str
    prompt_tokens: int
    handle: Any


class Engine(Protocol):
    @property
    def model(self) -> ModelInfo: ...

    @property
    def capacity(self) -> int:
        """How many jobs it decodes at once: the slots."""

    @property
    def has_work(self) -> bool: ...

    def vocabulary(self) -> Sequence[bytes] | None:
        """The bytes of each token by its id; empty for ids that stand for nothing. None if they
        are not known. Any thread calls it, and it may take its time."""

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        """Check and tokenize a job. An earlier worker has logged `generated_ids`.

        Raises:
            InvalidRequest: this model cannot run the job.
        """

    def add(self, prepared: Prepared) -> None:
        """No job of this id is in the engine."""

    def abort(self, job_id: str) -> None:
        """Free the slot of a job. Unknown ids are ignored, because the job may just have
        finished."""

    def step(self, only: str | None = None) -> list[StepOutput]:
        """Compute the next tokens of every job, or of `only` one while the others pause."""

    def stats(self) -> SchedulerStats: ...


def check_no_adapter(job: JobSpec, model: ModelInfo) -> None:
    """For an engine without adapters. Raises: InvalidParameter"""
    if job.adapter:
        raise InvalidParameter(
            f"adapter: the engine {model.engine} has no LoRA adapters, so not {job.adapter!r} "
            "either: leave it out, or serve the queue by `rose worker --engine vllm`",
            param="adapter",
        )
