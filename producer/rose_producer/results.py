"""The answer to a job, from its events."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from rose.engine_records import Numbers, PromptLogprobs, TokenLogprob
from rose.protocol import (
    CancelledEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    TokenEvent,
    error_of,
)

#: Closed by a consumer that stops early.
AsyncEvents = AsyncGenerator[Event, None]
#: Events that were available together, in order.
AsyncBursts = AsyncGenerator[list[Event], None]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished job. `token_ids` are the generated ones, the end-of-text id included.

    `logprobs` has one for each of them, if the job asked for them, and `prompt_logprobs` those of
    the prompt. `cached_tokens` of the prompt were not computed, since an earlier job had; None
    where the worker does not say.
    """

    job_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: Literal["eos", "stop", "length"]
    prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    cached_tokens: int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    numbers: Numbers | None = None
    """the answer to a job with `encode`"""


class ResultBuilder:
    """Events in, result out."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: PromptLogprobs | None = None

    def add(self, event: Event) -> Result | None:
        """The result once the job is finished.

        Raises:
            JobFailed, JobCancelled, DeadlineExceeded, PromptTooLong, InvalidParameter
        """
        match event:
            case TokenEvent():
                self._text.append(event.text)
                self._token_ids.extend(event.token_ids)
                self._logprobs.extend(event.logprobs or ())
                if event.prompt_logprobs is not None:
                    self._prompt_logprobs = event.prompt_logprobs
            case FinishedEvent():
                return Result(
                    self._job_id,
                    "".join(self._text),
                    tuple(self._token_ids),
                    event.reason,
                    event.prompt_tokens,
                    tuple(self._logprobs) or None,
                    event.cached_tokens,
                    self._prompt_logprobs,
                    event.numbers,
                )
            case CancelledEvent() | FailedEvent():
                raise error_of(event, self._job_id)
        return None
