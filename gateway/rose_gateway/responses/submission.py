"""From a request to what the queue and the record need."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from rose.protocol import Priority
from rose_gateway.access.authentication import Caller
from rose_gateway.access.sealing import Seal, audience_of
from rose_gateway.answers.endpoint import IncomingRequest, check_metadata, tier_of, token_limit
from rose_gateway.answers.thinking import plan_thinking
from rose_gateway.jobs.job_client import JobGroup, Submission
from rose_gateway.jobs.job_group import Record
from rose_gateway.models.catalogue import ServedModel, vocabulary_key
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import check_chat
from rose_gateway.requests.sampling import (
    JsonObjectFormat,
    checked,
    grammar_param,
    json_grammar,
    sampling_fields,
)
from rose_gateway.requests.thinking import Reasoning
from rose_gateway.requests.warnings import not_followed
from rose_gateway.responses import rendering
from rose_gateway.responses.history import find_previous, referred
from rose_gateway.responses.items import chat_messages, input_items
from rose_gateway.responses.parameters import Item, ResponseParameters
from rose_gateway.responses.schema import (
    LOGPROBS,
    SEALED,
    CreateResponse,
    FunctionTool,
    HostedTool,
    JsonSchemaFormat,
    ReasoningItem,
    TextConfig,
    Tool,
)
from rose_gateway.responses.tools import choice_of, functions_of, styles_of
from rose_gateway.services import Services
from rose_gateway.tools.tools import ToolPlan, plan_tools

#: As OpenAI has it, where a request does not say.
_TEMPERATURE = 1.0
#: What may be refused of `text.format`.
_FORMAT = "text.format.schema"


def check_together(request: CreateResponse) -> None:
    """Raises: BadRequest: fields that cannot go together."""
    if request.background and request.store is False:
        raise BadRequest("background: needs store, or nobody could read the answer", "background")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options: only together with stream", "stream_options")


def submission(
    incoming: IncomingRequest,
    request: CreateResponse,
    model: ServedModel,
    history: Sequence[Item],
    referred: Mapping[str, Item],
    *,
    in_turns: bool = False,
    seal: Seal | None = None,
) -> Submission:
    """`history`: the items before those of the request; `in_turns`: a conversation has them.
    `referred`: those that it names, by id. `seal`: of the caller, where thoughts come sealed.

    Raises:
        BadRequest
    """
    check_chat(model.name, "1" if model.chat else "0")
    items = input_items(request.input, referred, seal)
    messages = chat_messages(
        [*history, *items], request.instructions, thoughts=bool(model.reasoning_format)
    )
    tools = _tool_plan(request, model)
    priority = incoming.priority_of(request.service_tier)
    logprobs = bool(request.top_logprobs) or LOGPROBS in (request.include or ())
    left_out: list[str] = []
    form = {} if tools.form.must_call else _format_grammar(request.text, left_out)
    if tools.form.kind != "text":
        _check_calls(request, logprobs=logprobs, has_format=bool(form))
    sampling = _sampling(request, model, tools, form, logprobs=logprobs)
    read = tools.form.with_thoughts(model.reasoning_format)
    thinking = plan_thinking(request, model, read.thoughts)
    warnings = [
        *incoming.warned(thinking.warnings),
        *tools.warnings,
        *not_followed(left_out, "text.format"),
    ]
    parameters = ResponseParameters(
        _shown(request, sampling, priority) | ({"warnings": warnings} if warnings else {}),
        items,
        () if in_turns else tuple(history),
        read,
        vocabulary_key(model) if logprobs else "",
        logprobs,
        grammar_param(request, _FORMAT if form else ""),
        styles_of(request.tools or ()),
        audience_of(incoming.caller) if SEALED in (request.include or ()) else None,
    )
    return Submission(
        model,
        messages,
        _record(incoming, request, parameters, warnings),
        {**tools.with_lazy(sampling), **read.sampling, **thinking.sampling},
        tools.definitions,
        priority,
        request.deadline_s,
        idempotency_key=incoming.idempotency_key,
        chat_template_kwargs=thinking.template_kwargs,
        cache_salt=request.cache_salt,
        session=incoming.session or request.prompt_cache_key,
    )


def _record(
    incoming: IncomingRequest,
    request: CreateResponse,
    parameters: ResponseParameters,
    warnings: Sequence[dict[str, Any]],
) -> Record:
    return Record(
        "response",
        request.model,
        incoming.sha256,
        parameters.as_record(),
        store=request.store is not False,
        background=bool(request.background),
        warnings=warnings,
    )


def _check_calls(request: CreateResponse, *, logprobs: bool, has_format: bool) -> None:
    """Raises: BadRequest: what an answer that may call functions cannot have."""
    if logprobs:
        raise BadRequest(
            "top_logprobs: answers that may call functions have no log-probabilities",
            "top_logprobs" if request.top_logprobs else "include",
            code="unsupported_parameter",
        )
    if has_format:
        raise BadRequest(
            "text.format: what must be JSON cannot call functions of its own accord: say "
            "tool_choice 'none' or 'required', or leave the format out",
            "text.format",
            code="unsupported_parameter",
        )


def _sampling(
    request: CreateResponse,
    model: ServedModel,
    tools: ToolPlan,
    form: Mapping[str, Any],
    *,
    logprobs: bool,
) -> dict[str, Any]:
    most = token_limit(request.max_output_tokens, model.context_tokens)
    fields = sampling_fields(request, max_new_tokens=most, default_temperature=_TEMPERATURE)
    if logprobs:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if tools.stop:
        fields["stop"] = (*fields.get("stop", ()), *tools.stop)
    return checked(fields, **{"tool_choice": tools.sampling, "text.format": form})


def _format_grammar(text: TextConfig | None, left_out: list[str]) -> dict[str, Any]:
    match text and text.format:
        case JsonObjectFormat():
            return json_grammar({"type": "object"}, "text.format")
        case JsonSchemaFormat(schema_=schema, strict=strict):
            is_strict = strict is not False
            return json_grammar(schema, _FORMAT, strict=is_strict, left_out=left_out)
    return {}


def _tool_plan(request: CreateResponse, model: ServedModel) -> ToolPlan:
    functions = functions_of(request.tools or ())
    return plan_tools(
        functions,
        choice_of(request.tool_choice, has_tools=bool(functions)),
        tool_format=model.tool_format,
        parallel=request.parallel_tool_calls is not False,
        is_default=request.tool_choice is None,
    )


def _shown(
    request: CreateResponse, sampling: Mapping[str, Any], priority: Priority
) -> dict[str, Any]:
    """The fields of the response object that are settled now."""
    choice = request.tool_choice
    return {
        "model": request.model,
        "previous_response_id": request.previous_response_id,
        "instructions": request.instructions,
        "tools": [
            _shown_tool(tool) for tool in request.tools or () if not isinstance(tool, HostedTool)
        ],
        "tool_choice": choice.model_dump(exclude_none=True)
        if isinstance(choice, BaseModel)
        else choice or "auto",
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "max_tool_calls": request.max_tool_calls,
        "text": _shown_text(request.text),
        "reasoning": _shown_reasoning(request),
        "truncation": "disabled",
        "temperature": sampling["temperature"],
        "top_p": _number(request.top_p, 1.0),
        "presence_penalty": _number(request.presence_penalty, 0.0),
        "frequency_penalty": _number(request.frequency_penalty, 0.0),
        "top_logprobs": request.top_logprobs or 0,
        "max_output_tokens": request.max_output_tokens,
        "metadata": check_metadata(request.metadata),
        "service_tier": tier_of(priority),
        "store": request.store is not False,
        "background": bool(request.background),
        "user": request.user,
        "safety_identifier": request.safety_identifier,
        "prompt_cache_key": request.prompt_cache_key,
    }


def _shown_reasoning(request: CreateResponse) -> dict[str, Any]:
    given = request.reasoning
    effort, summary = request.reasoning_effort, None
    if isinstance(given, Reasoning):
        effort, summary = given.effort or effort, given.summary
    return {"effort": None if effort in ("default", "auto") else effort, "summary": summary}


def _number(given: float | None, default: float) -> float:
    return default if given is None else given


def _shown_tool(tool: Tool) -> dict[str, Any]:
    if isinstance(tool, FunctionTool):
        known = tool.model_dump(include={"type", "name", "description", "parameters"})
        options = tool.model_dump(by_alias=True, exclude_none=True)
        return {**options, **known, "strict": tool.strict is not False}
    return tool.model_dump(by_alias=True, exclude_none=True)


def _shown_text(text: TextConfig | None) -> dict[str, Any]:
    form = text and text.format
    if isinstance(form, JsonSchemaFormat):
        shown = {**form.model_dump(by_alias=True), "strict": form.strict is not False}
    else:
        shown = {"type": form.type if form else "text"}
    return {"format": shown, "verbosity": "medium"}


async def make_submission(
    incoming: IncomingRequest, request: CreateResponse, history: Sequence[Item] | None = None
) -> Submission:
    """`history`: the items before those of the request, where they are at hand.

    Raises: BadRequest, ApiError, JobNotFound, BrokerUnavailable
    """
    services, caller = incoming.services, incoming.caller
    model = await services.catalogue.resolve(request.model)
    items = await referred(services, caller, request)
    seal = await seal_of(services, caller, request, model)
    if history is not None or request.previous_response_id is None:
        return submission(incoming, request, model, history or (), items, seal=seal)
    previous = await find_previous(services, caller, request.previous_response_id)
    made = submission(incoming, request, model, previous.items, items, in_turns=True, seal=seal)
    previous.check_size(made)
    return replace(made, turn=previous.turn)


async def seal_of(
    services: Services, caller: Caller, request: CreateResponse, model: ServedModel
) -> Seal | None:
    """What opens the thoughts of a request; None where none is sealed, or no model reads it.

    Raises: BrokerUnavailable
    """
    items = () if isinstance(request.input, str) else request.input
    is_sealed = any(isinstance(item, ReasoningItem) and item.encrypted_content for item in items)
    if not (is_sealed and model.reasoning_format):
        return None
    return await services.sealing.seal(audience_of(caller))


async def answer(services: Services, group: JobGroup, *, pause_s: float = 0.0) -> dict[str, Any]:
    """The response when it has ended. `pause_s`: as for `JobGroup.bursts`.

    Raises: ApiError, JobNotFound, BrokerUnavailable
    """
    events = await rendering.events_of(services, group)
    return await rendering.answered(group, events, pause_s=pause_s)
