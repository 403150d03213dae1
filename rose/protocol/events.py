"""What a subscriber sees: token events, then exactly one terminal event."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rose.engine_records import TokenLogprob
from rose.errors import (
    DeadlineExceeded,
    InvalidParameter,
    JobCancelled,
    JobFailed,
    PromptTooLong,
    RoseError,
)

#: Values of a job's `status` after which nothing more happens to it.
TERMINAL_STATUSES = frozenset({"finished", "failed", "cancelled"})


class _Event(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    index: int = Field(ge=0)
    """How many tokens came before this event."""

    @property
    def cursor(self) -> int:
        """How many tokens a subscriber has after this event: where to resume."""
        return self.index

    @property
    def is_terminal(self) -> bool:
        return True

    @property
    def entry_id(self) -> str:
        """Its place in the token log. A terminal event sorts after the last token."""
        return f"{self.cursor}-{1 if self.is_terminal else 0}"


class TokenEvent(_Event):
    """Tokens `index` to `index + len(token_ids) - 1`, and the text they add.

    `text` is never half a character: it lags behind while one is incomplete, or while it might
    be the beginning of a stop string.
    """

    type: Literal["tokens"] = "tokens"
    token_ids: tuple[int, ...] = Field(min_length=1, strict=False, fail_fast=True)
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = Field(default=None, strict=False, fail_fast=True)
    """One for each of `token_ids`, if the job asks for them."""

    @property
    def cursor(self) -> int:
        return self.index + len(self.token_ids)

    @property
    def is_terminal(self) -> bool:
        return False


class FinishedEvent(_Event):
    """Complete. `reason`: the model ended (eos), a stop string or id came, or the length is up."""

    type: Literal["finished"] = "finished"
    reason: Literal["eos", "stop", "length"]
    prompt_tokens: int = Field(ge=0)


class CancelledEvent(_Event):
    type: Literal["cancelled"] = "cancelled"


class FailedEvent(_Event):
    type: Literal["failed"] = "failed"
    code: str
    message: str


Event = Annotated[
    TokenEvent | FinishedEvent | CancelledEvent | FailedEvent, Field(discriminator="type")
]

_BY_CODE: dict[str, type[RoseError]] = {
    PromptTooLong.code: PromptTooLong,
    InvalidParameter.code: InvalidParameter,
}


def error_of(event: FailedEvent | CancelledEvent, job_id: str) -> RoseError:
    """The exception that a terminal event stands for."""
    if isinstance(event, CancelledEvent):
        return JobCancelled(f"job {job_id} was cancelled", job_id=job_id)
    message = f"job {job_id}: {event.message}"
    if event.code == DeadlineExceeded.code:
        return DeadlineExceeded(message, job_id=job_id)
    if event.code in _BY_CODE:
        return _BY_CODE[event.code](message)
    return JobFailed(message, job_id=job_id, code=event.code)
