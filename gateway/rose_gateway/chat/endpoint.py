"""The endpoint of a chat completion: from its request to the queue, from its jobs to the answer."""

from typing import Any

from rose_gateway.answers.choices import ChoicesEndpoint
from rose_gateway.chat.answer import ChatCollector
from rose_gateway.chat.chunks import ChatChunks
from rose_gateway.chat.parameters import ChatParameters
from rose_gateway.chat.schema import ChatRequest
from rose_gateway.jobs.jobs import Submission
from rose_gateway.jobs.record import Record
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.models.vocabularies import vocabulary_key
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import chat_messages, check_chat
from rose_gateway.requests.incoming_request import IncomingRequest
from rose_gateway.requests.request_fields import check_metadata, tier_of, token_limit
from rose_gateway.requests.sampling import (
    checked,
    format_fields,
    format_param,
    grammar_param,
    sampling_fields,
)
from rose_gateway.tools.tools import ToolPlan, chat_choice, chat_functions, plan_tools


async def make_submission(incoming: IncomingRequest, request: ChatRequest) -> Submission:
    """Raises: BadRequest, ApiError, BrokerUnavailable"""
    model = await incoming.services.catalogue.resolve(request.model)
    return _submission(incoming, request, model)


def _submission(incoming: IncomingRequest, request: ChatRequest, model: ServedModel) -> Submission:
    """Raises: BadRequest"""
    check_chat(request.model, "1" if model.chat else "0")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only for stream: true", "stream_options")
    tools = _tools(request, model)
    priority = incoming.priority_of(request.service_tier)
    metadata = check_metadata(request.metadata)
    parameters = ChatParameters(
        form=tools.form,
        logprobs=bool(request.logprobs),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        stream=bool(request.stream),
        tier=tier_of(priority),
        metadata=metadata,
        vocabulary=vocabulary_key(model) if request.logprobs else "",
        grammar=grammar_param(request, format_param(request.response_format)),
    )
    return Submission(
        model,
        chat_messages(request.messages),
        Record(
            "chat",
            request.model,
            incoming.sha256,
            parameters.as_record(),
            choices=request.n or 1,
            store=request.store is not False,
        ),
        sampling=_sampling(request, model, tools),
        tools=tools.definitions,
        chat_template_kwargs=request.chat_template_kwargs or {},
        priority=priority,
        deadline_s=request.deadline_s,
        idempotency_key=incoming.idempotency_key,
        cache_salt=request.cache_salt,
    )


def _tools(request: ChatRequest, model: ServedModel) -> ToolPlan:
    """Raises: BadRequest"""
    functions = chat_functions(request.tools or ())
    choice = chat_choice(request.tool_choice, has_tools=bool(functions))
    if choice.mode == "auto" and not functions:
        return ToolPlan()
    return plan_tools(
        functions,
        choice,
        tool_format=model.tool_format,
        parallel=request.parallel_tool_calls is not False,
        is_default=request.tool_choice is None,
    )


def _sampling(request: ChatRequest, model: ServedModel, tools: ToolPlan) -> dict[str, Any]:
    """Raises: BadRequest"""
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise BadRequest(
            "max_tokens and max_completion_tokens are two names of one limit and differ",
            "max_tokens",
        )
    if request.top_logprobs and not request.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true", "top_logprobs")
    most = token_limit(next(iter(limits - {-1}), None), model.context_tokens)
    own = sampling_fields(request, max_new_tokens=most)
    if request.logprobs:
        own |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if tools.stop:
        own["stop"] = (*own.get("stop", ()), *tools.stop)
    form = format_fields(request.response_format)
    return checked(own, response_format=form, tool_choice=tools.sampling)


ENDPOINT = ChoicesEndpoint(make_submission, ChatParameters.from_record, ChatChunks, ChatCollector)
