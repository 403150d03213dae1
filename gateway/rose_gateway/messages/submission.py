"""From a request to what the queue and the record need."""

from collections.abc import Mapping
from typing import Any

from rose.protocol import Priority
from rose_gateway.access.authentication import Caller
from rose_gateway.access.sealing import audience_of
from rose_gateway.answers.endpoint import IncomingRequest, token_limit
from rose_gateway.answers.prefill import check_prefill
from rose_gateway.answers.thinking import plan_thinking
from rose_gateway.errors import ApiError
from rose_gateway.jobs.job_client import Submission
from rose_gateway.jobs.job_group import Record
from rose_gateway.messages.conversation import chat_messages
from rose_gateway.messages.schema import (
    AnyChoice,
    AssistantMessage,
    CreateMessage,
    MessageParameters,
    NoneChoice,
    PromptRequest,
    ThinkingBlock,
    ToolChoice,
)
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import check_chat
from rose_gateway.requests.sampling import checked, grammar_param, json_grammar, sampling_fields
from rose_gateway.requests.warnings import not_followed
from rose_gateway.services import Services
from rose_gateway.tools.tools import Choice, Function, ToolPlan, checked_functions, plan_tools

_FORMAT = "output_config.format.schema"

#: What Anthropic calls the tier that an answer had.
_TIERS = {Priority.LOW: "batch", Priority.NORMAL: "standard", Priority.HIGH: "priority"}


async def make_submission(incoming: IncomingRequest, request: CreateMessage) -> Submission:
    """Raises: BadRequest, ApiError, BrokerUnavailable"""
    model = await _resolved(incoming.services, incoming.caller, request.model)
    check_chat(request.model, "1" if model.chat else "0")
    tools = tool_plan(request, model)
    left_out: list[str] = []
    grammar = _format_grammar(request, tools, left_out)
    sampling = _sampling(request, model, tools, grammar)
    form = tools.form.with_thoughts(model.reasoning_format)
    thinking = plan_thinking(request, model, form.thoughts)
    tier = "default" if request.service_tier == "standard_only" else request.service_tier
    priority = incoming.priority_of(tier)
    parameters = MessageParameters(
        model=request.model,
        form=form,
        stop_sequences=tuple(request.stop_sequences or ()),
        stream=bool(request.stream),
        tier=_TIERS[priority],
        grammar=grammar_param(request, _FORMAT if grammar else ""),
        sealed_for=audience_of(incoming.caller),
        omits_thoughts=getattr(request.thinking, "display", None) == "omitted",
    )
    chat = await _chat_messages(incoming, request, model)
    if continues := isinstance(request.messages[-1], AssistantMessage):
        check_prefill(chat, model, sampling, form, f"messages[{len(request.messages) - 1}]")
    return Submission(
        model,
        chat,
        Record(
            "message",
            request.model,
            incoming.sha256,
            parameters.as_record(),
            warnings=[
                *incoming.warned(thinking.warnings),
                *tools.warnings,
                *not_followed(left_out, "output_config.format"),
            ],
        ),
        sampling={**tools.with_lazy(sampling), **form.sampling, **thinking.sampling},
        tools=tools.definitions,
        chat_template_kwargs=thinking.template_kwargs,
        priority=priority,
        deadline_s=request.deadline_s,
        idempotency_key=incoming.idempotency_key,
        cache_salt=request.cache_salt,
        session=incoming.session or session_in(request),
        continues=continues,
    )


def session_in(request: CreateMessage) -> str | None:
    """Versions of Claude Code without a header for it name the session here."""
    user = request.metadata.user_id if request.metadata else None
    return user if user and "session" in user else None


async def prompt_submission(incoming: IncomingRequest, request: PromptRequest) -> Submission:
    """What makes the prompt, and no more. Raises: BadRequest, ApiError, BrokerUnavailable"""
    model = await _resolved(incoming.services, incoming.caller, request.model)
    check_chat(request.model, "1" if model.chat else "0")
    thinking = plan_thinking(request, model, model.reasoning_format)
    tools = tool_plan(request, model)
    form = tools.form.with_thoughts(model.reasoning_format)
    chat = await _chat_messages(incoming, request, model)
    if continues := isinstance(request.messages[-1], AssistantMessage):
        check_prefill(chat, model, {}, form, f"messages[{len(request.messages) - 1}]")
    return Submission(
        model,
        chat,
        Record("message", request.model, incoming.sha256),
        tools=tools.definitions,
        chat_template_kwargs=thinking.template_kwargs,
        continues=continues,
    )


async def _chat_messages(
    incoming: IncomingRequest, request: PromptRequest, model: ServedModel
) -> list[dict[str, Any]]:
    """Raises: BadRequest, BrokerUnavailable"""
    if not model.reasoning_format:
        return chat_messages(request)
    blocks = (
        block
        for message in request.messages
        if isinstance(message, AssistantMessage) and not isinstance(message.content, str)
        for block in message.content
    )
    seal = None
    if any(isinstance(block, ThinkingBlock) and block.signature for block in blocks):
        seal = await incoming.services.sealing.seal(audience_of(incoming.caller))
    return chat_messages(request, thoughts=True, seal=seal)


async def _resolved(services: Services, caller: Caller, name: str) -> ServedModel:
    """Raises: ApiError: 404, which names what there is: many clients have a name of their own
    choice built in."""
    names = await services.catalogue.names()
    try:
        return await services.catalogue.resolve(name)
    except ApiError as error:
        mine = sorted(
            known
            for known, model in names.items()
            if caller.may_use(model.name) or caller.may_use(known)
        )
        if mine:
            error.message = (
                f"the model {name!r} is not served here, but {', '.join(mine[:8])}: ask for that, "
                "or let ROSE_GATEWAY_ALIASES map the name"
            )
        raise


def tool_plan(request: PromptRequest, model: ServedModel) -> ToolPlan:
    """Raises: BadRequest"""
    functions = checked_functions(
        Function(
            tool.name,
            tool.description,
            tool.input_schema,
            f"tools[{number}]",
            tool.strict is True,
        )
        for number, tool in enumerate(request.tools or ())
    )
    choice = _choice(request, has_tools=bool(functions))
    if choice.mode == "auto" and not functions:
        return ToolPlan()
    given = request.tool_choice
    parallel = isinstance(given, NoneChoice) or not (given and given.disable_parallel_tool_use)
    return plan_tools(
        functions,
        choice,
        tool_format=model.tool_format,
        parallel=parallel,
        is_default=given is None,
    )


def _choice(request: PromptRequest, *, has_tools: bool) -> Choice:
    match request.tool_choice:
        case NoneChoice():
            return Choice("none")
        case AnyChoice():
            return Choice("required")
        case ToolChoice(name=name):
            return Choice("named", (name,))
    return Choice("auto" if has_tools else "none")


def _format_grammar(request: PromptRequest, tools: ToolPlan, left_out: list[str]) -> dict[str, Any]:
    """Raises: BadRequest"""
    form = request.output_config.format if request.output_config else None
    if form is None or tools.form.must_call:
        return {}
    if tools.form.kind != "text":
        raise BadRequest(
            "output_config.format: what must be JSON cannot call tools of its own accord: say "
            "tool_choice none or any, or leave the format out",
            "output_config.format",
            code="unsupported_parameter",
        )
    return json_grammar(form.schema_, _FORMAT, strict=False, left_out=left_out)


def _sampling(
    request: CreateMessage, model: ServedModel, tools: ToolPlan, grammar: Mapping[str, Any]
) -> dict[str, Any]:
    """Raises: BadRequest"""
    most = token_limit(request.max_tokens, model.context_tokens)
    fields = sampling_fields(request, max_new_tokens=most)
    if stops := (*dict.fromkeys(request.stop_sequences or ()), *tools.stop):
        fields["stop"] = stops
    return checked(fields, **{"tool_choice": tools.sampling, "output_config.format": grammar})
