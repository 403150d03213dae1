"""What a prompt is in tokens, and what tokens say, as vLLM's server has it."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from rose_gateway.chat.endpoint import ENDPOINT as CHAT
from rose_gateway.chat.schema import ChatRequest
from rose_gateway.completions.endpoint import ENDPOINT as COMPLETION
from rose_gateway.completions.schema import CompletionRequest
from rose_gateway.models.catalogue import vocabulary_key
from rose_gateway.openapi import answer_of, body_of
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import Message
from rose_gateway.requests.parsing import parse
from rose_gateway.requests.sampling import RequestModel
from rose_gateway.routes.delivery import prompt_counted
from rose_gateway.routes.dependencies import (
    CallerDependency,
    HttpRequestDependency,
    ServicesDependency,
)
from rose_gateway.tools.tools import MAX_TOOLS, ChatTool

router = APIRouter(tags=["tokens"])

#: Of one request.
_MAX_TOKENS = 200_000


class Tokenize(RequestModel):
    """A text, or a chat."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: (
        Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)] | None
    ) = None
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: Literal[True] | None = None
    add_generation_prompt: Literal[True] | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenize(RequestModel):
    model: Annotated[str, Field(min_length=1, max_length=256)]
    tokens: Annotated[
        list[Annotated[int, Field(ge=0, le=2**31 - 1)]],
        Field(max_length=_MAX_TOKENS, fail_fast=True),
    ]


class DetokenizeAnswer(BaseModel):
    prompt: str


@router.post(
    "/tokenize",
    summary="Say which tokens a prompt has",
    openapi_extra=body_of(Tokenize),
    responses=answer_of(TokenizeAnswer),
    response_model=None,
)
async def tokenize(incoming: HttpRequestDependency) -> Response:
    request = incoming.parsed(Tokenize)
    services = incoming.services
    incoming = replace(incoming, idempotency_key=None)
    if (request.prompt is None) == (request.messages is None):
        raise BadRequest("prompt: give either prompt or messages", "prompt")
    if request.prompt is not None:
        completion = CompletionRequest(model=request.model, prompt=request.prompt)
        submission = await COMPLETION.make_submission(incoming, completion)
    else:
        chat = ChatRequest(
            model=request.model,
            messages=request.messages or [],
            tools=request.tools,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        submission = await CHAT.make_submission(incoming, chat)
    event = await prompt_counted(incoming, submission, "ids")
    ids = list(event.prompt_ids or ())
    answer: dict[str, Any] = {
        "count": event.prompt_tokens,
        "max_model_len": submission.model.context_tokens,
        "tokens": ids,
        "token_strs": None,
    }
    if request.return_token_strs:
        names = await services.vocabularies.get(vocabulary_key(submission.model))
        answer["token_strs"] = [names.name(token_id).token for token_id in ids]
    return JSONResponse(answer)


@router.post(
    "/detokenize",
    summary="Say what tokens mean",
    openapi_extra=body_of(Detokenize),
    responses=answer_of(DetokenizeAnswer),
    response_model=None,
)
async def detokenize(
    request: Request, services: ServicesDependency, caller: CallerDependency
) -> Response:
    del caller
    nesting = services.settings.max_nesting
    given = parse(Detokenize, await request.body(), max_nesting=nesting)
    model = await services.catalogue.resolve(given.model, None)
    text = (await services.vocabularies.get(vocabulary_key(model))).text(given.tokens)
    if text is None:
        raise BadRequest(
            "tokens: the model's workers have announced no vocabulary, or it lacks one of them",
            "tokens",
        )
    return JSONResponse({"prompt": text})
