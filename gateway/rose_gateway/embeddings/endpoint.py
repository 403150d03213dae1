"""From a request for numbers to the queue, and from its jobs' events to the answer.

A request becomes some jobs, each of which one event can answer. They are its choices.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rose.engine_records import Numbers
from rose.errors import JobNotFound, MalformedMessage
from rose.protocol import FinishedEvent
from rose_gateway.answers.endpoint import IncomingRequest
from rose_gateway.embeddings.output_types import converted
from rose_gateway.embeddings.schema import (
    EmbeddingsRequest,
    EmbedRequest,
    NumbersRequest,
    RerankRequest,
    ScoreRequest,
)
from rose_gateway.errors import ApiError
from rose_gateway.jobs.job_answer import failure
from rose_gateway.jobs.job_client import JobGroup, Submission
from rose_gateway.jobs.job_group import EndpointKind, Record
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.services import Services
from rose_producer.embeddings import encode_requests
from rose_producer.request import InputLike, Request

Asked = TypeVar("Asked", bound=NumbersRequest)

#: To write the numbers of more inputs takes longer than to wake a thread.
MAX_INLINE = 8


@dataclass(frozen=True, slots=True)
class NumbersEndpoint(Generic[Asked]):
    make_submission: Callable[[IncomingRequest, Asked], Awaitable[Submission]]
    """Raises: BadRequest, ApiError, BrokerUnavailable"""
    render: Callable[[JobGroup, Sequence[FinishedEvent]], dict[str, Any]]
    """the answer, without its usage"""

    async def answer(
        self, services: Services, group: JobGroup, *, pause_s: float = 0.0
    ) -> dict[str, Any]:
        """Raises: ApiError, JobNotFound, MalformedMessage, BrokerUnavailable"""
        ends = await _ends(group, pause_s)
        await services.pacer.wait()
        tokens = sum(end.prompt_tokens for end in ends)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        if sum(end.numbers.row_count for end in ends if end.numbers is not None) <= MAX_INLINE:
            answer = self.render(group, ends)
        else:
            answer = await asyncio.to_thread(self.render, group, ends)
        return {**answer, "usage": usage}


async def _ends(group: JobGroup, pause_s: float) -> list[FinishedEvent]:
    """Of each job. Raises: ApiError: one has failed; JobNotFound, BrokerUnavailable"""
    ends: dict[int, FinishedEvent] = {}
    async with aclosing(group.bursts(pause_s=pause_s)) as bursts:
        async for burst in bursts:
            for choice, event in burst:
                if isinstance(event, FinishedEvent):
                    if event.numbers is None:
                        raise MalformedMessage(f"an answer to {group.id} has no numbers")
                    ends[choice] = event
                elif event.is_terminal:
                    raise failure(event, group, choice)  # type: ignore[arg-type]
    if len(ends) != len(group.jobs):
        raise JobNotFound(f"job {group.id} ended without a terminal event")
    return [ends[choice] for choice in range(len(ends))]


def _submission(
    incoming: IncomingRequest,
    request: NumbersRequest,
    model: ServedModel,
    inputs: Sequence[InputLike],
    width: int | None,
    encode: Mapping[str, Any],
    kind: EndpointKind,
    parameters: dict[str, Any],
) -> Submission:
    """`parameters`: what the answer depends on beside the numbers."""
    parts = encode_requests(inputs, width, encode, Request(""))
    return Submission(
        model,
        parts[0].prompt,
        Record(
            kind,
            request.model,
            incoming.sha256,
            parameters,
            choices=len(parts),
            store=incoming.continues,
        ),
        prompts=[part.prompt for part in parts],
        encodes=[part.encode or {} for part in parts],
        priority=incoming.priority_of(request.service_tier),
        deadline_s=request.deadline_s,
        idempotency_key=incoming.idempotency_key,
    )


# Embeddings

_BASE64 = "base64"


async def _embeddings(incoming: IncomingRequest, request: EmbeddingsRequest) -> Submission:
    model = await incoming.services.catalogue.resolve(request.model, "embed")
    given: Any = request.input
    inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    encode = {
        "dimensions": request.dimensions,
        "prompt_name": request.prompt_name,
        "truncate": bool(request.truncate),
    }
    width = request.dimensions or model.dimensions
    parameters: dict[str, Any] = {"encoding_format": request.encoding_format or "float"}
    if request.output_dtype is not None:
        parameters["output_dtype"] = request.output_dtype
    return _submission(incoming, request, model, inputs, width, encode, "embedding", parameters)


def _vectors(group: JobGroup, ends: Sequence[FinishedEvent]) -> dict[str, Any]:
    asked = group.own_record.request
    is_packed = asked.get("encoding_format") == _BASE64
    vectors = _rows(ends, asked.get("output_dtype", "float"), is_packed=is_packed)
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": group.own_record.model}


def _rows(ends: Sequence[FinishedEvent], output_type: Any, *, is_packed: bool) -> list[Any]:
    return [
        row
        for end in ends
        if end.numbers is not None
        for row in _written(end.numbers, output_type, is_packed=is_packed)
    ]


def _written(numbers: Numbers, output_type: Any, *, is_packed: bool) -> Iterable[Any]:
    if output_type == "float" and is_packed:
        return (b64encode(row).decode() for row in numbers.packed())
    rows = (converted(row, output_type) for row in numbers.rows())
    return (b64encode(row).decode() if is_packed else row.tolist() for row in rows)


async def _cohere_embeddings(incoming: IncomingRequest, request: EmbedRequest) -> Submission:
    model = await incoming.services.catalogue.resolve(request.model, "embed")
    if (request.texts is None) == (request.inputs is None):
        raise BadRequest("texts: give either texts or inputs", "texts")
    texts = request.texts or [one.content[0].text for one in request.inputs or ()]
    encode = {
        "dimensions": request.output_dimension,
        "input_type": request.input_type.removeprefix("search_"),
        "truncate": request.truncate != "NONE",
    }
    width = request.output_dimension or model.dimensions
    parameters = {"embedding_types": request.embedding_types or ["float"]}
    return _submission(incoming, request, model, texts, width, encode, "embed", parameters)


def _by_type(group: JobGroup, ends: Sequence[FinishedEvent]) -> dict[str, Any]:
    embeddings = {
        name: _rows(ends, "float" if name == _BASE64 else name, is_packed=name == _BASE64)
        for name in group.own_record.request["embedding_types"]
    }
    tokens = sum(end.prompt_tokens for end in ends)
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}}
    return {
        "id": f"embed-{group.id}",
        "response_type": "embeddings_by_type",
        "embeddings": embeddings,
        "meta": meta,
    }


# Ranks and scores


async def _scoring(
    incoming: IncomingRequest,
    request: RerankRequest | ScoreRequest,
    queries: Sequence[str],
    texts: Sequence[str],
    kind: EndpointKind,
    parameters: dict[str, Any],
    *,
    truncate: bool,
) -> Submission:
    model = await incoming.services.catalogue.resolve(request.model, "score")
    if model.dimensions not in (None, 1):
        raise ApiError(
            400,
            f"the model {request.model!r} gives {model.dimensions} numbers to each pair of texts: "
            "it classifies them, and does not say how well they fit",
            param="model",
            code="model_not_supported",
        )
    encode = {"task": "score", "queries": tuple(queries), "truncate": truncate}
    return _submission(incoming, request, model, texts, 1, encode, kind, parameters)


def _scores(ends: Sequence[FinishedEvent]) -> list[float]:
    numbers = (end.numbers for end in ends if end.numbers is not None)
    return [row[0] for one in numbers for row in one.rows()]


async def _rerank(incoming: IncomingRequest, request: RerankRequest) -> Submission:
    texts = [one if isinstance(one, str) else one.text for one in request.documents]
    parameters: dict[str, Any] = {"top_n": request.top_n}
    if request.return_documents:
        parameters["documents"] = texts
    return await _scoring(
        incoming,
        request,
        [request.query],
        texts,
        "rerank",
        parameters,
        truncate=request.truncate is not False,
    )


def _ranks(group: JobGroup, ends: Sequence[FinishedEvent]) -> dict[str, Any]:
    record, scores = group.own_record, _scores(ends)
    # Equal ones in their order in the request.
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: record.request["top_n"]]
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": scores[index]} for index in order
    ]
    if (texts := record.request.get("documents")) is not None:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return {"id": f"rerank-{group.id}", "model": record.model, "results": results, "meta": meta}


async def _score(incoming: IncomingRequest, request: ScoreRequest) -> Submission:
    queries, texts = (
        [one] if isinstance(one, str) else one for one in (request.text_1, request.text_2)
    )
    if len(queries) not in (1, len(texts)):
        raise BadRequest(
            f"text_1: it has {len(queries)} texts, and text_2 {len(texts)}: give one for all of "
            "them, or one for each",
            "text_1",
        )
    truncate = bool(request.truncate)
    return await _scoring(incoming, request, queries, texts, "score", {}, truncate=truncate)


def _score_list(group: JobGroup, ends: Sequence[FinishedEvent]) -> dict[str, Any]:
    data = [
        {"object": "score", "index": index, "score": score}
        for index, score in enumerate(_scores(ends))
    ]
    return {
        "id": f"score-{group.id}",
        "object": "list",
        "created": group.created_at,
        "model": group.own_record.model,
        "data": data,
    }


EMBEDDINGS = NumbersEndpoint(_embeddings, _vectors)
EMBED = NumbersEndpoint(_cohere_embeddings, _by_type)
RERANK = NumbersEndpoint(_rerank, _ranks)
SCORE = NumbersEndpoint(_score, _score_list)
