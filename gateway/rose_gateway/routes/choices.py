"""Chat completions and completions: their jobs' answers are choices."""

from fastapi import APIRouter
from starlette.responses import Response

from rose_gateway.chat import schema as chat
from rose_gateway.chat.endpoint import ENDPOINT as CHAT
from rose_gateway.completions import schema as completions
from rose_gateway.completions.endpoint import ENDPOINT as COMPLETION
from rose_gateway.openapi import answer_of, body_of
from rose_gateway.routes.delivery import respond
from rose_gateway.routes.dependencies import HttpRequestDependency

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    summary="Create a chat completion",
    openapi_extra=body_of(chat.ChatRequest),
    responses=answer_of(chat.ChatAnswer, stream="chat.completion.chunk objects, then [DONE]"),
    response_model=None,
    tags=["chat"],
)
async def create_chat_completion(incoming: HttpRequestDependency) -> Response:
    return await respond(CHAT, incoming, incoming.parsed(chat.ChatRequest, chat.UNSUPPORTED))


@router.post(
    "/v1/completions",
    summary="Create a completion",
    openapi_extra=body_of(completions.CompletionRequest),
    responses=answer_of(
        completions.CompletionAnswer, stream="text_completion objects, then [DONE]"
    ),
    response_model=None,
    tags=["completions"],
)
async def create_completion(incoming: HttpRequestDependency) -> Response:
    request = incoming.parsed(completions.CompletionRequest, completions.UNSUPPORTED)
    return await respond(COMPLETION, incoming, request)
