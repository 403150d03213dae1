"""Every error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

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
_PROMPTS = {"response": "input", "chat": "messages", "completion": "prompt"}
#: What all of them call other parameters of a job.
_PARAMETERS = {
    "adapter": "model",
    "chat_template_kwargs": "chat_template_kwargs",
    "logit_bias": "logit_bias",
    "stop": "stop",
}


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

    def response(self) -> JSONResponse:
        headers = dict(self.headers)
        if self.retry_after_s is None:
            headers.setdefault("x-should-retry", "false")
        else:
            headers |= retry_headers(self.retry_after_s)
        return JSONResponse(self.body(), self.status, headers)


def retry_headers(after_s: float) -> dict[str, str]:
    return {
        "retry-after": str(max(1, round(after_s + 0.499))),
        "retry-after-ms": str(max(1, round(after_s * 1000))),
        "x-should-retry": "true",
    }


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
    names = {"prompt": _PROMPTS[endpoint], **_PARAMETERS}
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


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """What every refused request is answered with."""

    error: ErrorBody


#: For a router's `responses`: what any of its routes may answer.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        400: "The request is wrong; `param` says where.",
        401: "The API key is missing or unknown.",
        403: "The API key may not do this.",
        404: "It does not exist, or belongs to another key.",
        405: "The path has no such method.",
        408: "The request or its deadline took too long.",
        409: "The Idempotency-Key was used with another body, the job was cancelled, or Redis has "
        "lost tokens of the answer and others were written.",
        413: "The request is too large.",
        415: "The request's body is compressed.",
        431: "The request's headers are too large.",
        429: "A limit is reached, or the queue is full; `retry-after` says when to retry.",
        500: "The server failed.",
        503: "Redis or the file storage is unavailable or full; `retry-after` says when to retry.",
        504: "The answer took too long.",
    }.items()
}


def install(app: FastAPI) -> None:
    """Answer every exception of this app in OpenAI's shape."""
    app.add_exception_handler(ApiError, _answer)
    app.add_exception_handler(RoseError, _answer)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(Exception, _bug)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    answer = api_error(error)
    if answer.status == 500:
        log.error("%s failed", _route(request), exc_info=error)
    return answer.response()


async def _bug(request: Request, error: Exception) -> JSONResponse:
    log.error("%s failed", _route(request), exc_info=error)
    return api_error(error).response()


#: OpenAI's paths that are not here, and what to use instead.
_INSTEAD = {
    "/v1/responses/compact": "nothing compacts a conversation here: send the items to go on with "
    "as the input of POST /v1/responses",
    "/v1/responses/input_tokens": "tokens are not counted before a request: its `usage` says "
    "input_tokens, and a prompt that is too long is refused",
    "/v1/conversations": "conversations are not stored: use previous_response_id",
    "/v1/embeddings": "this server's models write text",
    "/v1/messages": "use POST /v1/chat/completions",
    "/v1/engines": "use GET /v1/models",
    "/v1/uploads": "use POST /v1/files",
}


async def _http(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses: no such path, no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type
    if error.status_code in (404, 405):
        return unknown_url(request, error.status_code).response()
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    return ApiError(error.status_code, str(error.detail), headers=headers).response()


def unknown_url(request: Request, status: int = 404) -> ApiError:
    """Below /v1 a path without this method is answered as one that is not there, as OpenAI does it:
    clients take 405 for a mistake of their own."""
    method, path = request.method, request.url.path[:256]
    instead = next((said for known, said in _INSTEAD.items() if _is_below(path, known)), "")
    if status == 404 or instead:
        message = f"no such path: {method} {path}"
        return ApiError(404, f"{message}: {instead}" if instead else message, code="unknown_url")
    allowed = ", ".join(_methods(request))
    if path.startswith("/v1/"):
        return ApiError(
            404, f"no such path: {method} {path}: use {allowed} {path}", code="unknown_url"
        )
    return ApiError(
        405,
        f"{path} has no method {method}",
        code="method_not_allowed",
        headers={"allow": allowed},
    )


def _is_below(path: str, known: str) -> bool:
    return path == known or path.startswith(f"{known}/")


def _methods(request: Request) -> list[str]:
    """All methods of the path. The framework names those of one route."""
    paths: dict[str, Any] = request.app.openapi()["paths"]
    return sorted(
        method.upper()
        for path, operations in paths.items()
        if compile_path(path)[0].match(request.url.path)
        for method in operations
    )


async def _validation(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type
    # Of the path, the query and the headers; bodies go through `parsing`. The value is not told: it
    # may be a secret.
    first = error.errors()[0]
    param = ".".join(map(str, first["loc"][1:]))
    message = f"{param}: {first['msg']}"
    return ApiError(400, message, param=param, code="invalid_value").response()


def _route(request: Request) -> str:
    route = request.scope.get("route")
    return f"{request.method} {getattr(route, 'path', 'a path that is not known')}"
