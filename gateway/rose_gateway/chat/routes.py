"""POST /v1/chat/completions"""

from fastapi import APIRouter
from starlette.responses import Response

from rose_gateway.chat.endpoint import ENDPOINT
from rose_gateway.chat.schema import UNSUPPORTED, ChatAnswer, ChatRequest
from rose_gateway.openapi import answer_of, body_of
from rose_gateway.requests.http_request import HttpRequestDependency

router = APIRouter(tags=["chat"])


@router.post(
    "/v1/chat/completions",
    summary="Create a chat completion",
    openapi_extra=body_of(ChatRequest),
    responses=answer_of(ChatAnswer, stream="chat.completion.chunk objects, then [DONE]"),
    response_model=None,
)
async def create_chat_completion(incoming: HttpRequestDependency) -> Response:
    return await ENDPOINT.respond(incoming, incoming.parsed(ChatRequest, UNSUPPORTED))
