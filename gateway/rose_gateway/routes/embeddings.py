"""Embeddings as OpenAI and Cohere have them, ranks as Cohere and Jina do, scores as vLLM does."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from rose_gateway.embeddings import schema
from rose_gateway.embeddings.endpoint import (
    EMBED,
    EMBEDDINGS,
    MAX_INLINE,
    RERANK,
    SCORE,
    NumbersEndpoint,
)
from rose_gateway.http.sse import while_connected
from rose_gateway.openapi import answer_of, body_of
from rose_gateway.routes.delivery import delivery, when_gone
from rose_gateway.routes.dependencies import HttpRequestDependency, IncomingHttpRequest

router = APIRouter(tags=["embeddings"])


@router.post(
    "/v1/embeddings",
    summary="Create embeddings",
    openapi_extra=body_of(schema.EmbeddingsRequest),
    responses=answer_of(schema.EmbeddingsAnswer),
    response_model=None,
)
async def create_embeddings(incoming: HttpRequestDependency) -> Response:
    return await _respond(EMBEDDINGS, incoming, incoming.parsed(schema.EmbeddingsRequest))


@router.post(
    "/v2/embed",
    summary="Create embeddings in the shape of Cohere's API",
    openapi_extra=body_of(schema.EmbedRequest),
    responses=answer_of(schema.EmbedAnswer),
    response_model=None,
)
async def embed(incoming: HttpRequestDependency) -> Response:
    request = incoming.parsed(schema.EmbedRequest, schema.EMBED_UNSUPPORTED)
    return await _respond(EMBED, incoming, request)


@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
@router.post(
    "/v1/rerank",
    summary="Put documents into the order in which they fit a query; also /rerank and /v2/rerank",
    openapi_extra=body_of(schema.RerankRequest),
    responses=answer_of(schema.RerankAnswer),
    response_model=None,
)
async def rerank(incoming: HttpRequestDependency) -> Response:
    return await _respond(RERANK, incoming, incoming.parsed(schema.RerankRequest))


@router.post("/score", include_in_schema=False)
@router.post(
    "/v1/score",
    summary="Score pairs of texts; also /score",
    openapi_extra=body_of(schema.ScoreRequest),
    responses=answer_of(schema.ScoresAnswer),
    response_model=None,
)
async def score(incoming: HttpRequestDependency) -> Response:
    return await _respond(SCORE, incoming, incoming.parsed(schema.ScoreRequest))


async def _respond(
    endpoint: NumbersEndpoint[Any], incoming: IncomingHttpRequest, request: Any
) -> Response:
    submission = await endpoint.make_submission(incoming, request)
    group = await incoming.services.jobs.submit(incoming.caller, submission, listed=False)
    work = endpoint.answer(incoming.services, group)
    async with delivery(group):
        gone = when_gone(incoming, group)
        answer = await while_connected(incoming.request, work, on_disconnect=gone)
    rows = len(answer.get("data", ())) + sum(map(len, answer.get("embeddings", {}).values()))
    if rows <= MAX_INLINE:
        body = msgspec.json.encode(answer)
    else:
        body = await asyncio.to_thread(msgspec.json.encode, answer)
    return Response(body, media_type="application/json")
