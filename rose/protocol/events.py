"""What a subscriber sees: token events, then exactly one terminal event."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from rose.engine_records import Numbers, PromptLogprobs, TokenLogprob
from rose.errors import (
    DeadlineExceeded,
    InvalidParameter,
    InvalidRequest,
    JobCancelled,
    JobFailed,
    PromptTooLong,
    RoseError,
)

#: Final values of a job's `status`.
TERMINAL_STATUSES = frozenset({"finished", "failed", "cancelled"})

_Count = Annotated[int, Meta(ge=0)]


# A subscriber reads one for every token: msgspec decodes and checks it in a tenth of the time that
# msgpack and pydantic take together.
class _Event(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    index: _Count
    """How many tokens came before this event."""

    is_terminal: ClassVar[bool] = True

    @property
    def cursor(self) -> int:
        """The number of tokens that a subscriber has after this event: where to resume."""
        return self.index

    @property
    def entry_id(self) -> str:
        """Its place in the token log. A terminal event sorts after the last token."""
        return f"{self.cursor}-{1 if self.is_terminal else 0}"

    def as_dict(self) -> dict[str, Any]:
        """As it is written: its fields and its type, without those that are None."""
        fields = {name: getattr(self, name) for name in ("index", "type", *self.__struct_fields__)}
        return {name: value for name, value in fields.items() if value is not None}

    def as_json(self) -> dict[str, Any]:
        """As `as_dict`, with base64 instead of binary."""
        return self.as_dict()


class TokenEvent(_Event, frozen=True, kw_only=True, gc=False, tag="tokens"):
    """Tokens `index` to `index + len(token_ids) - 1`, and the text they add.

    `text` is never half a character: it lags behind while one is incomplete, or while it might
    be the beginning of a stop string.
    """

    type: ClassVar[Literal["tokens"]] = "tokens"
    is_terminal: ClassVar[bool] = False

    token_ids: Annotated[tuple[int, ...], Meta(min_length=1)]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of `token_ids`, if the job asks for them."""
    prompt_logprobs: PromptLogprobs | None = None
    """The prompt's, with the first token, if the job asks for them."""
    text_lengths: tuple[_Count, ...] | None = None
    """How many characters of `text` each of several tokens brings; None of a single token."""

    @property
    def cursor(self) -> int:
        return self.index + len(self.token_ids)

    def after(self, position: int) -> TokenEvent:
        """Its tokens from `position` on, which lies inside of it."""
        skipped = position - self.index
        lengths = self.text_lengths or ()
        return TokenEvent(
            index=position,
            token_ids=self.token_ids[skipped:],
            text=self.text[sum(lengths[:skipped]) :],
            logprobs=self.logprobs and self.logprobs[skipped:],
            text_lengths=lengths[skipped:] if len(lengths) > skipped + 1 else None,
        )

    def single_tokens(self) -> list[TokenEvent]:
        """The same as an event for each token."""
        if self.text_lengths is None:
            return [self]
        singles, start = [], 0
        for n, (token_id, length) in enumerate(zip(self.token_ids, self.text_lengths, strict=True)):
            single = TokenEvent(
                index=self.index + n,
                token_ids=(token_id,),
                text=self.text[start : start + length],
                logprobs=self.logprobs and self.logprobs[n : n + 1],
                prompt_logprobs=None if n else self.prompt_logprobs,
            )
            singles.append(single)
            start += length
        return singles


class FinishedEvent(_Event, frozen=True, kw_only=True, gc=False, tag="finished"):
    """Complete. `reason`: the model ended (eos), a stop string or id came, or the length is up."""

    type: ClassVar[Literal["finished"]] = "finished"

    reason: Literal["eos", "stop", "length"]
    prompt_tokens: _Count
    cached_tokens: _Count | None = None
    """Of the prompt, found in the prefix cache of its last worker; None if that does not say."""
    stop: str | None = None
    """The stop string that ended it; None if something else did, or its worker does not say."""
    prompt_ids: tuple[int, ...] | None = None
    """The tokens of the prompt, of a job that asks for no more than that."""
    left_out: str | None = None
    """Why the text followed no grammar though the job has `grammar_triggers`: it could not be
    compiled."""
    numbers: Numbers | None = None
    """The answer to a job with `encode`; it has no tokens then, and its index is 0."""

    def as_json(self) -> dict[str, Any]:
        fields = self.as_dict()
        if self.numbers is not None:
            fields["numbers"] = [self.numbers.width, b64encode(self.numbers.data).decode()]
        return fields


class CancelledEvent(_Event, frozen=True, kw_only=True, gc=False, tag="cancelled"):
    type: ClassVar[Literal["cancelled"]] = "cancelled"


class FailedEvent(_Event, frozen=True, kw_only=True, gc=False, tag="failed"):
    type: ClassVar[Literal["failed"]] = "failed"

    code: str
    message: str
    param: str | None = None
    """The wrong field of the job; None if it is not a single one."""

    @classmethod
    def of(cls, error: RoseError, index: int) -> FailedEvent:
        """What `error_of` undoes."""
        param = error.param if isinstance(error, InvalidRequest) else None
        return cls(index=index, code=error.code, message=str(error), param=param)


Event = TokenEvent | FinishedEvent | CancelledEvent | FailedEvent

_BY_CODE: dict[str, type[InvalidRequest]] = {
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
        return _BY_CODE[event.code](message, param=event.param)
    return JobFailed(message, job_id=job_id, code=event.code)
