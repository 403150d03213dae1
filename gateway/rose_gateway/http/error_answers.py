"""Errors as HTTP answers, in the shape of the API that was asked."""

import logging
import re
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from rose.errors import RoseError
from rose_gateway.access.authentication import current_request
from rose_gateway.errors import ApiError, api_error

log = logging.getLogger("rose.gateway")


def error_response(error: ApiError) -> JSONResponse:
    """For the current request."""
    context = current_request()
    body = error.body()
    if context.anthropic:
        body = {**error.anthropic_body(), "request_id": context.request_id}
    return JSONResponse(body, error.status, error_headers(error))


def error_headers(error: ApiError) -> dict[str, str]:
    """Its own, and those that say when to try again."""
    headers = dict(error.headers)
    if error.retry_after_s is None:
        headers.setdefault("x-should-retry", "false")
    else:
        headers |= {
            "retry-after": str(max(1, round(error.retry_after_s + 0.499))),
            "retry-after-ms": str(max(1, round(error.retry_after_s * 1000))),
            "x-should-retry": "true",
        }
    return headers


_ANTHROPIC_PATH = "/v1/messages"


def is_anthropic(path: str) -> bool:
    """Whether a path is one of Anthropic's API."""
    return _is_below(path, _ANTHROPIC_PATH)


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """What every refused request is answered with."""

    error: ErrorBody


class AnthropicErrorBody(BaseModel):
    type: str
    message: str


class AnthropicErrorAnswer(BaseModel):
    """The same below /v1/messages."""

    type: Literal["error"] = "error"
    error: AnthropicErrorBody
    request_id: str


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

#: The same for routes of Anthropic's API.
ANTHROPIC_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {**answer, "model": AnthropicErrorAnswer} for status, answer in ERROR_RESPONSES.items()
}


def install(app: FastAPI) -> None:
    """Answer every exception of this app."""
    app.add_exception_handler(ApiError, _answer)
    app.add_exception_handler(RoseError, _answer)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(Exception, _bug)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    answer = api_error(error)
    if answer.status == 500:
        log.error("%s failed", _route(request), exc_info=error)
    return error_response(answer)


async def _bug(request: Request, error: Exception) -> JSONResponse:
    log.error("%s failed", _route(request), exc_info=error)
    return error_response(api_error(error))


#: OpenAI's paths that are not here, and what to use instead.
_INSTEAD = {
    "/v1/responses/compact": "nothing compacts a conversation here: send the items to go on with "
    "as the input of POST /v1/responses",
    "/v1/responses/input_tokens": "use POST /v1/responses/input_tokens",
    "/v1/conversations": "conversations are not stored: use previous_response_id",
    "/v1/embeddings": "this server's models write text",
    "/v1/engines": "use GET /v1/models",
    "/v1/uploads": "use POST /v1/files",
}


async def _http(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses: no such path, no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type
    if error.status_code in (404, 405):
        return error_response(unknown_url(request, error.status_code))
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    return error_response(ApiError(error.status_code, str(error.detail), headers=headers))


def unknown_url(request: Request, status: int = 404) -> ApiError:
    """Below /v1 a path without this method is answered as one that is not there, as OpenAI does it:
    clients take 405 for a mistake of their own."""
    method, path = request.method, request.url.path[:256]
    instead = next((said for known, said in _INSTEAD.items() if _is_below(path, known)), "")
    if status == 404 and not instead and (meant := _meant(request)):
        base = "OpenAI's clients have a base URL that ends in /v1, Anthropic's one without it"
        instead = f"use {meant}: {base}, and no path ends in a slash"
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


def _meant(request: Request) -> str:
    """A path that there is, if a base URL without /v1, one with it twice, or a slash at the end has
    made this one; "" if not."""
    path = re.sub("/{2,}", "/", request.url.path[:256]).rstrip("/")
    for meant in (path, f"/v1{path}", path.removeprefix("/v1")):
        if meant != request.url.path and any(
            compile_path(known)[0].match(meant) for known in _documented(request)
        ):
            return meant
    return ""


def _documented(request: Request) -> dict[str, Any]:
    paths: dict[str, Any] = request.app.openapi()["paths"]
    return paths


def _is_below(path: str, known: str) -> bool:
    return path == known or path.startswith(f"{known}/")


def _methods(request: Request) -> list[str]:
    """All methods of the path. The framework names those of one route."""
    return sorted(
        method.upper()
        for path, operations in _documented(request).items()
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
    return error_response(ApiError(400, message, param=param, code="invalid_value"))


def _route(request: Request) -> str:
    route = request.scope.get("route")
    return f"{request.method} {getattr(route, 'path', 'a path that is not known')}"
