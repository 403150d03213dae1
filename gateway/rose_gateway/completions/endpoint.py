"""The endpoint of a completion: from its request to the queue, from its jobs to the answer."""

from collections.abc import Mapping
from typing import Any

from rose_gateway.answers.endpoint import (
    ChoicesEndpoint,
    IncomingRequest,
    token_limit,
)
from rose_gateway.completions.output import CompletionChunks, CompletionCollector
from rose_gateway.completions.schema import (
    DEFAULT_MAX_TOKENS,
    MAX_PROMPTS,
    CompletionParameters,
    CompletionRequest,
)
from rose_gateway.jobs.job_client import Submission
from rose_gateway.jobs.job_group import Record
from rose_gateway.models.catalogue import ServedModel, vocabulary_key
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.sampling import (
    checked,
    format_fields,
    format_param,
    grammar_param,
    sampling_fields,
)
from rose_gateway.requests.warnings import not_followed
from rose_gateway.services import Services


async def make_submission(incoming: IncomingRequest, request: CompletionRequest) -> Submission:
    """Raises: BadRequest, ApiError, BrokerUnavailable"""
    model = await incoming.services.catalogue.resolve(request.model)
    return await _submission(incoming, request, model)


async def _submission(
    incoming: IncomingRequest, request: CompletionRequest, model: ServedModel
) -> Submission:
    """Raises: BadRequest"""
    n = request.n or 1
    prompts = _prompts(request)
    _check_together(request, n, len(prompts))
    left_out: list[str] = []
    form = format_fields(request.response_format, left_out)
    echoes = [await _echo(incoming.services, model, prompt) for prompt in prompts if request.echo]
    parameters = CompletionParameters(
        choices_of_a_prompt=n,
        echoes=tuple(echoes),
        logprobs=request.logprobs,
        writes=request.max_tokens != 0,
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        stream=bool(request.stream),
        vocabulary=vocabulary_key(model) if request.logprobs is not None else "",
        grammar=grammar_param(request, format_param(request.response_format)),
    )
    return Submission(
        model,
        prompts[0],
        Record(
            "completion",
            request.model,
            incoming.sha256,
            parameters.as_record(),
            choices=len(prompts) * n,
            store=request.store is not False,
            warnings=not_followed(left_out, "response_format"),
        ),
        prompts=[prompt for prompt in prompts for _ in range(n)],
        sampling=_sampling(request, model, form),
        priority=incoming.priority_of(request.service_tier),
        deadline_s=request.deadline_s,
        idempotency_key=incoming.idempotency_key,
        cache_salt=request.cache_salt,
        session=incoming.session,
    )


def _check_together(request: CompletionRequest, n: int, prompts: int) -> None:
    """Raises: BadRequest: what cannot go together, or only at OpenAI's."""
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only for stream: true", "stream_options")
    if request.best_of is not None and request.best_of != n:
        raise BadRequest(
            f"best_of is {request.best_of} and n is {n}: answers are not chosen from more",
            "best_of",
            code="unsupported_parameter",
        )
    if prompts * n > MAX_PROMPTS:
        raise BadRequest(
            f"{prompts} prompts with {n} answers each are over {MAX_PROMPTS}", "prompt"
        )


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    prompt: Any = request.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


async def _echo(services: Services, model: ServedModel, prompt: str | list[int]) -> str:
    """Raises: BadRequest: nobody knows what the token ids say."""
    if isinstance(prompt, str):
        return prompt
    text = (await services.vocabularies.get(vocabulary_key(model))).text(prompt)
    if text is None:
        raise BadRequest(
            "echo of token ids: the model's workers have announced no vocabulary, or it lacks "
            "one of them",
            "echo",
        )
    return text


def _sampling(
    request: CompletionRequest, model: ServedModel, form: Mapping[str, Any]
) -> dict[str, Any]:
    """Raises: BadRequest"""
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    most = token_limit(None if limit == -1 else limit, model.context_tokens)
    own = sampling_fields(request, max_new_tokens=most)
    own["max_new_tokens"] = max(own["max_new_tokens"], 1)  # the least that a job generates
    if request.logprobs is not None:
        own |= {"logprobs": True, "top_logprobs": request.logprobs}
        if request.echo:
            own["prompt_logprobs"] = True
    return checked(own, response_format=form)


ENDPOINT = ChoicesEndpoint(
    make_submission, CompletionParameters.from_record, CompletionChunks, CompletionCollector
)
