"""The endpoint of a chat completion: from a request to a submission, and from the jobs to its answer."""

from __future__ import annotations

from typing import Any

from rose_gateway.catalogue import ServedModel
from rose_gateway.chat.answer import ChatCollector
from rose_gateway.chat.chunks import ChatChunks
from rose_gateway.chat.schema import ChatRequest
from rose_gateway.chat.terms import ChatTerms
from rose_gateway.choices import ChoicesEndpoint
from rose_gateway.conversation import chat_messages, check_chat
from rose_gateway.jobs import Submission
from rose_gateway.question import Question
from rose_gateway.record import Record
from rose_gateway.refusal import Refused
from rose_gateway.request_fields import check_metadata, tier_of, token_limit
from rose_gateway.sampling import checked, format_fields, sampling_fields
from rose_gateway.tools import ToolPlan, chat_choice, chat_functions, plan_tools
from rose_gateway.vocabularies import vocabulary_key


async def plan(question: Question, asked: ChatRequest) -> Submission:
    """Raises: Refused, ApiError, BrokerUnavailable"""
    model = await question.services.catalogue.resolve(asked.model)
    return _submission(question, asked, model)


def _submission(question: Question, asked: ChatRequest, model: ServedModel) -> Submission:
    """Raises: Refused"""
    check_chat(asked.model, "1" if model.chat else "0")
    if asked.stream_options is not None and not asked.stream:
        raise Refused("stream_options is only for stream: true", "stream_options")
    tools = _tools(asked, model)
    priority = question.priority_of(asked.service_tier)
    metadata = check_metadata(asked.metadata)
    terms = ChatTerms(
        form=tools.form,
        logprobs=bool(asked.logprobs),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        stream=bool(asked.stream),
        tier=tier_of(priority),
        metadata=metadata,
        vocabulary=vocabulary_key(model) if asked.logprobs else "",
    )
    return Submission(
        model,
        chat_messages(asked.messages),
        Record(
            "chat",
            asked.model,
            question.sha256,
            terms.as_record(),
            choices=asked.n or 1,
            store=asked.store is not False,
        ),
        sampling=_sampling(asked, model, tools),
        tools=tools.definitions,
        chat_template_kwargs=asked.chat_template_kwargs or {},
        priority=priority,
        deadline_s=asked.deadline_s,
        idempotency_key=question.idempotency_key,
    )


def _tools(asked: ChatRequest, model: ServedModel) -> ToolPlan:
    """Raises: Refused"""
    functions = chat_functions(asked.tools or ())
    choice = chat_choice(asked.tool_choice, has_tools=bool(functions))
    if choice.mode == "auto" and not functions:
        return ToolPlan()
    return plan_tools(
        functions,
        choice,
        tool_format=model.tool_format,
        parallel=asked.parallel_tool_calls is not False,
        is_default=asked.tool_choice is None,
    )


def _sampling(asked: ChatRequest, model: ServedModel, tools: ToolPlan) -> dict[str, Any]:
    """Raises: Refused"""
    limits = {asked.max_tokens, asked.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise Refused(
            "max_tokens and max_completion_tokens are two names of one limit and differ",
            "max_tokens",
        )
    if asked.top_logprobs and not asked.logprobs:
        raise Refused("top_logprobs needs logprobs: true", "top_logprobs")
    most = token_limit(next(iter(limits - {-1}), None), model.context_tokens)
    own = sampling_fields(asked, max_new_tokens=most)
    if asked.logprobs:
        own |= {"logprobs": True, "top_logprobs": asked.top_logprobs or 0}
    if tools.stop:
        own["stop"] = (*own.get("stop", ()), *tools.stop)
    form = format_fields(asked.response_format)
    return checked(own, response_format=form, tool_choice=tools.sampling)


ENDPOINT = ChoicesEndpoint(plan, ChatTerms.from_record, ChatChunks, ChatCollector)
