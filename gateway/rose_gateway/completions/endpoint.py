"""The endpoint of a completion: from a request to a submission, and from the jobs to its answer."""

from __future__ import annotations

from typing import Any

from rose_gateway.catalogue import ServedModel
from rose_gateway.choices import ChoicesEndpoint
from rose_gateway.completions.output import CompletionChunks, CompletionCollector
from rose_gateway.completions.schema import DEFAULT_MAX_TOKENS, MAX_PROMPTS, CompletionRequest
from rose_gateway.completions.terms import CompletionTerms
from rose_gateway.jobs import Submission
from rose_gateway.question import Question
from rose_gateway.record import Record
from rose_gateway.refusal import Refused
from rose_gateway.request_fields import token_limit
from rose_gateway.sampling import checked, format_fields, sampling_fields
from rose_gateway.services import Services
from rose_gateway.vocabularies import vocabulary_key


async def plan(question: Question, asked: CompletionRequest) -> Submission:
    """Raises: Refused, ApiError, BrokerUnavailable"""
    model = await question.services.catalogue.resolve(asked.model)
    return await _submission(question, asked, model)


async def _submission(
    question: Question, asked: CompletionRequest, model: ServedModel
) -> Submission:
    """Raises: Refused"""
    n = asked.n or 1
    prompts = _prompts(asked)
    _check_together(asked, n, len(prompts))
    echoes = [await _echo(question.services, model, prompt) for prompt in prompts if asked.echo]
    terms = CompletionTerms(
        choices_of_a_prompt=n,
        echoes=tuple(echoes),
        logprobs=asked.logprobs,
        writes=asked.max_tokens != 0,
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        stream=bool(asked.stream),
        vocabulary=vocabulary_key(model) if asked.logprobs is not None else "",
    )
    return Submission(
        model,
        prompts[0],
        Record(
            "completion",
            asked.model,
            question.sha256,
            terms.as_record(),
            choices=len(prompts) * n,
            store=asked.store is not False,
        ),
        prompts=[prompt for prompt in prompts for _ in range(n)],
        sampling=_sampling(asked, model),
        priority=question.priority_of(asked.service_tier),
        deadline_s=asked.deadline_s,
        idempotency_key=question.idempotency_key,
    )


def _check_together(asked: CompletionRequest, n: int, prompts: int) -> None:
    """Raises: Refused: what cannot go together, or only at OpenAI's."""
    if asked.stream_options is not None and not asked.stream:
        raise Refused("stream_options is only for stream: true", "stream_options")
    if asked.best_of is not None and asked.best_of != n:
        raise Refused(
            f"best_of is {asked.best_of} and n is {n}: answers are not chosen from more",
            "best_of",
            code="unsupported_parameter",
        )
    if prompts * n > MAX_PROMPTS:
        raise Refused(f"{prompts} prompts with {n} answers each are over {MAX_PROMPTS}", "prompt")


def _prompts(asked: CompletionRequest) -> list[str | list[int]]:
    prompt: Any = asked.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


async def _echo(services: Services, model: ServedModel, prompt: str | list[int]) -> str:
    """Raises: Refused: nobody knows what the token ids say."""
    if isinstance(prompt, str):
        return prompt
    text = (await services.vocabularies.get(vocabulary_key(model))).text(prompt)
    if text is None:
        raise Refused(
            "echo of token ids: the model's workers have announced no vocabulary, or it lacks "
            "one of them",
            "echo",
        )
    return text


def _sampling(asked: CompletionRequest, model: ServedModel) -> dict[str, Any]:
    """Raises: Refused"""
    limit = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    most = token_limit(None if limit == -1 else limit, model.context_tokens)
    own = sampling_fields(asked, max_new_tokens=most)
    own["max_new_tokens"] = max(own["max_new_tokens"], 1)  # the least that a job generates
    if asked.logprobs is not None:
        own |= {"logprobs": True, "top_logprobs": asked.logprobs}
        if asked.echo:
            own["prompt_logprobs"] = True
    return checked(own, response_format=format_fields(asked.response_format))


ENDPOINT = ChoicesEndpoint(plan, CompletionTerms.from_record, CompletionChunks, CompletionCollector)
