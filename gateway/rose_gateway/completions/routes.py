"""POST /v1/completions"""

from fastapi import APIRouter
from starlette.responses import Response

from rose_gateway.completions.endpoint import ENDPOINT
from rose_gateway.completions.schema import UNSUPPORTED, CompletionAnswer, CompletionRequest
from rose_gateway.openapi import answer_of, body_of
from rose_gateway.requests.http_request import HttpRequestDependency

router = APIRouter(tags=["completions"])


@router.post(
    "/v1/completions",
    summary="Create a completion",
    openapi_extra=body_of(CompletionRequest),
    responses=answer_of(CompletionAnswer, stream="text_completion objects, then [DONE]"),
    response_model=None,
)
async def create_completion(incoming: HttpRequestDependency) -> Response:
    return await ENDPOINT.respond(incoming, incoming.parsed(CompletionRequest, UNSUPPORTED))
