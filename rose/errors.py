"""Every exception roseinfer raises on purpose, as one tree.

A leaf module: it imports nothing, so each package can raise from the same tree although
`protocol` must not load redis and `roseinfer` must know neither Redis nor the protocol.
A message says what was wrong, with which value, and what to do about it.

    RoseError
    ├── InvalidRequest             the caller's input is wrong; sending it again cannot help
    │   ├── InvalidParameter       a sampling or job parameter is unknown or impossible
    │   ├── PromptTooLong          the prompt leaves no room for a token in the context
    │   ├── JobTooLarge            the encoded job or its metadata is over the size limit
    │   └── InvalidCursor          a stream cursor behind the end, or where text cannot be cut
    ├── MalformedMessage           bytes from Redis that are not what the protocol says
    ├── QueueFull                  back-pressure: try again later
    ├── TenantLimited              the tenant has as much as it may: try again later
    ├── JobNotFound                no such job, or what it wrote has expired or is gone
    │   └── AnswerChanged          a failover forgot tokens, and others came: read it again from 0
    ├── DeadLetterNotFound         retried, purged or trimmed before
    ├── FileNotFound               no such file, or it has expired
    │   └── FileGone               the file is known, but the storage does not have its content
    ├── BatchNotFound              no such batch, or it ended long ago
    ├── QuotaExceeded              an API key keeps as many files or batches as it may
    ├── StorageUnavailable         the storage of files cannot be read or written
    ├── JobFailed                  the job ended with an error
    │   ├── JobCancelled
    │   └── DeadlineExceeded
    ├── ResultTimeout              the caller's own timeout ran out; the job continues
    ├── BrokerUnavailable          Redis cannot be reached, or refuses us
    │   ├── RedisFull              Redis is at its memory limit: try again later
    │   └── ClientClosed           the client was closed: make another one
    ├── ConfigurationError         a setting is wrong
    └── ModelError
        ├── ModelConflict          the queue's workers serve another model
        ├── ModelNotFound          nothing loadable at that path or name
        ├── LogitsNotFinite        the model computes no numbers for this prompt
        └── UnsupportedModel       the engine would compute wrong answers for it
"""

from __future__ import annotations


class RoseError(Exception):
    """Root of the tree: `except RoseError` catches everything raised here on purpose.

    `code` is the stable, machine-readable name of the error: it travels in error events and in
    `--json` output.

    Submitting fills two more. `accepted` holds the ids of jobs that the failing call had enqueued
    before. `in_doubt` holds those that it has sent without learning whether they are enqueued, the
    requests after the accepted ones, in order. Submit them again with these ids as `job_id`, and
    none is enqueued twice.
    """

    code = "error"
    accepted: tuple[str, ...] = ()
    in_doubt: tuple[str, ...] = ()


class InvalidRequest(RoseError, ValueError):
    """`param` is the field of the job that is wrong, such as `prompt` or `logit_bias`; None where
    it is not a single one, or where only the message says it."""

    code = "invalid_request"
    param: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        if param is not None:
            self.param = param


class InvalidParameter(InvalidRequest):
    code = "invalid_parameter"


class PromptTooLong(InvalidRequest):
    code = "prompt_too_long"
    param = "prompt"

    @classmethod
    def of(cls, tokens: int | str, context: int) -> PromptTooLong:
        """In words that clients of OpenAI's API recognise: those that compact a conversation or
        ask a larger model look for them."""
        return cls(
            f"the prompt is too long: it has {tokens} tokens, and this model's maximum context "
            f"length is {context} tokens: send at most {context - 1}"
        )


class JobTooLarge(InvalidRequest):
    code = "job_too_large"


class InvalidCursor(InvalidRequest):
    code = "invalid_cursor"


class MalformedMessage(RoseError):
    code = "malformed_message"


class QueueFull(RoseError):
    """The queue holds as much as its limit allows; nothing was enqueued.

    `depth` and `limit` count `unit` ("jobs", "tokens" or "bytes").
    """

    code = "queue_full"

    def __init__(self, depth: int, limit: int, unit: str) -> None:
        super().__init__(
            f"the queue holds {depth} {unit}, its limit is {limit}: nothing was enqueued, "
            "try again later or raise the limit"
        )
        self.depth = depth
        self.limit = limit
        self.unit = unit


class TenantLimited(RoseError):
    """The tenant has as much as its limits allow; nothing was enqueued.

    `limit` is the name of one of `TenantLimits`, such as "requests_per_minute". `count` is what the
    tenant has of it, `maximum` what it may have. In `retry_after_s` seconds there may be room; None
    where there never is, since the job alone is more than the tenant may have.
    """

    code = "tenant_limited"

    def __init__(
        self, tenant: str, limit: str, count: int, maximum: int, retry_after_s: float
    ) -> None:
        never = count == 0 and limit.startswith("max_queued")
        super().__init__(
            f"{limit}: tenant {tenant} may have {maximum}, and the job alone is more: ask for "
            "less, or set its limits higher"
            if never
            else f"tenant {tenant} has {count} of {limit}, and may have {maximum}: nothing was "
            f"enqueued, try again in {retry_after_s:.3g} s, or set its limits higher"
        )
        self.tenant = tenant
        self.limit = limit
        self.count = count
        self.maximum = maximum
        self.retry_after_s = None if never else retry_after_s


class JobNotFound(RoseError):
    code = "job_not_found"


class AnswerChanged(JobNotFound):
    """Redis has lost tokens that were delivered, and the worker that went on has computed others,
    as half precision or another device may. What was delivered is not this job's answer any more:
    read it again from cursor 0."""

    code = "answer_changed"


class DeadLetterNotFound(RoseError):
    code = "dead_letter_not_found"


class FileNotFound(RoseError):
    code = "file_not_found"


class FileGone(FileNotFound):
    code = "file_gone"


class BatchNotFound(RoseError):
    code = "batch_not_found"


class QuotaExceeded(RoseError):
    code = "quota_exceeded"


class StorageUnavailable(RoseError):
    """The disk is full, the object store is unreachable, or it refuses us: try again later."""

    code = "storage_unavailable"


class JobFailed(RoseError):
    """The job ended with an error. `code` says which; `job_id` says whose."""

    code = "job_failed"

    def __init__(self, message: str, *, job_id: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        if code is not None:
            self.code = code


class JobCancelled(JobFailed):
    code = "cancelled"


class DeadlineExceeded(JobFailed):
    code = "deadline_exceeded"


class ResultTimeout(RoseError, TimeoutError):
    code = "result_timeout"


class BrokerUnavailable(RoseError):
    code = "broker_unavailable"


class RedisFull(BrokerUnavailable):
    """Redis has reached `maxmemory`; nothing was enqueued. Running and waiting jobs continue,
    and give memory back."""

    code = "redis_full"


class ClientClosed(BrokerUnavailable):
    code = "client_closed"

    def __init__(self) -> None:
        super().__init__("the client is closed: make another one")


class ConfigurationError(RoseError):
    code = "configuration"


class WrongEventLoop(RoseError, RuntimeError):
    """An asyncio client was used in another event loop than at first."""

    code = "wrong_event_loop"


class ModelError(RoseError):
    code = "model_error"


class ModelConflict(ModelError):
    code = "model_conflict"


class ModelNotFound(ModelError):
    code = "model_not_found"


class LogitsNotFinite(ModelError):
    code = "logits_not_finite"

    @classmethod
    def at(cls, position: int) -> LogitsNotFinite:
        return cls(
            f"the model's logits after {position} tokens are NaN or infinite, so no next token can "
            "be chosen: its values are too large for its dtype (load it in float32, ROSE_DTYPE), "
            "or a weight is damaged"
        )


class UnsupportedModel(ModelError):
    code = "unsupported_model"
