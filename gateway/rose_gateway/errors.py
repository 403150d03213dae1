"""What every error means: a status, a type, a code, the parameter that is wrong.

OpenAI's API says it as     {"error": {"message", "type", "param", "code"}}
and Anthropic's as          {"type": "error", "error": {"type", "message"}}
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rose.errors import (
    AnswerChanged,
    BatchNotFound,
    BrokerUnavailable,
    ConfigurationError,
    DeadlineExceeded,
    FileGone,
    FileNotFound,
    InvalidRequest,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobTooLarge,
    QueueFull,
    QuotaExceeded,
    RedisFull,
    ResultTimeout,
    RoseError,
    StorageUnavailable,
    TenantLimited,
)

log = logging.getLogger("rose.gateway")

#: Seconds after which a refused request may be tried again, where nothing says more.
_RETRY_FULL_S = 1.0
_RETRY_AWAY_S = 2.0

#: What a request of each endpoint calls the prompt of its job.
_PROMPTS = {
    "response": "input",
    "chat": "messages",
    "completion": "prompt",
    "message": "messages",
    "embedding": "input",
    "embed": "texts",
    "rerank": "documents",
    "score": "text_2",
}
#: What all of them call other parameters of a job.
_PARAMETERS = {
    "adapter": "model",
    "chat_template_kwargs": "chat_template_kwargs",
    "dimensions": "dimensions",
    "encode": "model",
    "logit_bias": "logit_bias",
    "prompt_name": "prompt_name",
    "stop": "stop",
}


#: What one endpoint calls them.
_OWN_PARAMETERS = {"embed": {"dimensions": "output_dimension"}}


class ClientGone(Exception):
    """Nobody waits for the answer any more. The access log notes it."""


class ApiError(Exception):
    """An answer that is an error. Routes raise it, or a RoseError."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002 - the field's name
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """`retry_after_s`: a repeat may help after this time; None: it is useless."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """As JSON, and as the data of a stream's error event."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic_body(self) -> dict[str, Any]:
        """The same in Anthropic's API."""
        kind = "api_error" if self.status >= 500 else "invalid_request_error"
        kind = _ANTHROPIC_TYPES.get(self.status, kind)
        return {"type": "error", "error": {"type": kind, "message": self._anthropic_message}}

    @property
    def _anthropic_message(self) -> str:
        """Its clients compact a conversation where they read that the prompt is too long, and by
        how many tokens."""
        if self.code == "context_length_exceeded" and (counts := _COUNTS.search(self.message)):
            return f"prompt is too long: {counts[1]} tokens > {counts[2]} maximum"
        return self.message


#: Anthropic's types of errors, where a status has one of its own.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

#: In the message of `PromptTooLong`.
_COUNTS = re.compile(r"it has (.+?) tokens, .* length is (\d+) tokens")


@dataclass(frozen=True, slots=True)
class _Meaning:
    status: int
    type: str
    retry_after_s: float | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


#: The first that fits.
_MEANINGS: tuple[tuple[type[RoseError], _Meaning], ...] = (
    (JobTooLarge, _Meaning(413, "invalid_request_error")),
    (InvalidRequest, _Meaning(400, "invalid_request_error")),
    (AnswerChanged, _Meaning(409, "server_error", _RETRY_FULL_S)),
    (JobNotFound, _Meaning(404, "invalid_request_error", code="not_found")),
    (FileGone, _Meaning(404, "invalid_request_error")),
    (BatchNotFound, _Meaning(404, "invalid_request_error", code="not_found")),
    (FileNotFound, _Meaning(404, "invalid_request_error", code="not_found")),
    (QuotaExceeded, _Meaning(429, "insufficient_quota")),
    (StorageUnavailable, _Meaning(503, "server_error", _RETRY_AWAY_S)),
    (QueueFull, _Meaning(429, "rate_limit_error", _RETRY_FULL_S)),
    (TenantLimited, _Meaning(429, "rate_limit_error")),
    (RedisFull, _Meaning(503, "server_error", _RETRY_AWAY_S)),
    (BrokerUnavailable, _Meaning(503, "server_error", _RETRY_AWAY_S)),
    (DeadlineExceeded, _Meaning(408, "invalid_request_error")),
    (JobCancelled, _Meaning(409, "invalid_request_error")),
    (ResultTimeout, _Meaning(504, "server_error")),
    (JobFailed, _Meaning(500, "server_error")),
)


def api_error(error: Exception) -> ApiError:
    """What any exception means to a client. A bug says nothing of itself."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, JobFailed) and error.code in ("prompt_too_long", "invalid_parameter"):
        return ApiError(400, str(error), code=_code(error.code))
    for kind, meaning in _MEANINGS:
        if isinstance(error, kind):
            return ApiError(
                meaning.status,
                str(error),
                type=meaning.type,
                code=meaning.code or _code(error.code),
                param=_parameter(error),
                retry_after_s=_retry_after_s(error, meaning),
            )
    if isinstance(error, ConfigurationError):
        log.error("a request met a wrong setting: %s", error)
    return ApiError(500, "the server failed; the error is in its log", type="server_error")


def job_error(error: RoseError, endpoint: str, grammar: str = "") -> ApiError:
    """`api_error` of one about a job, by the names that its request has for parameters."""
    answer = api_error(error)
    answer.param = parameter(error, endpoint, grammar)
    return answer


def parameter(error: RoseError, endpoint: str, grammar: str = "") -> str | None:
    """What a request calls the parameter of its job that is wrong, `grammar` being what it calls
    the grammar of its text. None: nobody knows, or it may be any of several."""
    if not isinstance(error, InvalidRequest):
        return None
    own = _OWN_PARAMETERS.get(endpoint, {})
    names = {"prompt": _PROMPTS[endpoint], **_PARAMETERS, **own}
    wrong = error.param or ""
    if wrong.split(".")[0] in ("json_schema", "regex", "grammar"):
        return grammar or None
    return names.get(wrong)


def _retry_after_s(error: RoseError, meaning: _Meaning) -> float | None:
    return error.retry_after_s if isinstance(error, TenantLimited) else meaning.retry_after_s


def _code(code: str) -> str:
    return "context_length_exceeded" if code == "prompt_too_long" else code


def _parameter(error: RoseError) -> str | None:
    """Messages about a parameter begin with its name."""
    if not isinstance(error, InvalidRequest):
        return None
    name, colon, _ = str(error).partition(": ")
    return name if colon and name.replace("_", "").replace(".", "").isalnum() else None
