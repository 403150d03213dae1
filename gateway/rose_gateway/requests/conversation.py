"""OpenAI's messages as those of a job: roles, parts of contents, calls of tools and their results.

What comes out are the fields of `rose.protocol.ChatMessage`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rose.protocol import FunctionCall
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import check_size
from rose_gateway.requests.sampling import RequestModel, ReturnedModel

#: The parts of a content that are text, and the field that has it.
_TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}


CacheControl = Annotated[
    dict[str, Any] | None,
    Field(description="Anthropic's: accepted; equal prefixes share the cache without it"),
]

#: Of the arguments of a call; deeper ones are shown to the model as text.
_MAX_NESTING = 1000


class ContentPart(BaseModel):
    """A part of a message's content. Only text is supported."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | Annotated[list[ContentPart], Field(max_length=4096, fail_fast=True)]


# As rose.protocol.ChatMessage has them.
_CallId = Annotated[str, Field(min_length=1, max_length=128)]
_Speaker = Annotated[str, Field(min_length=1, max_length=128)]


class CalledFunction(ReturnedModel):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    arguments: str


class ToolCall(ReturnedModel):
    id: _CallId
    type: Literal["function"] = "function"
    function: CalledFunction


class _GivenMessage(RequestModel):
    """Clients with one type for all roles write null for what only an assistant's message has."""

    refusal: None = None
    tool_calls: None = None
    audio: None = None
    function_call: None = None
    cache_control: CacheControl = None


class SystemMessage(_GivenMessage):
    role: Literal["system", "developer"]
    content: Content
    name: _Speaker | None = None
    tool_call_id: None = None


class UserMessage(_GivenMessage):
    role: Literal["user"]
    content: Content
    name: _Speaker | None = None
    tool_call_id: None = None


class AssistantMessage(ReturnedModel):
    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    name: _Speaker | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    reasoning_content: str | None = Field(
        default=None, description="its thoughts; templates that read none leave them out"
    )
    reasoning: str | None = Field(default=None, description="the same, by another name")
    prefix: bool | None = Field(
        default=None, description="of the last message: the answer continues it"
    )
    audio: None = None
    function_call: None = None


class ToolMessage(_GivenMessage):
    role: Literal["tool"]
    content: Content
    tool_call_id: _CallId
    name: _Speaker | None = Field(default=None, description="of the function, for chat templates")


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def check_chat(model: str, chat: str | None) -> None:
    """`chat` is what the workers announce: "1" with a chat template, None where nobody knows.

    Raises: BadRequest
    """
    if chat is not None and chat != "1":
        raise BadRequest(
            f"model {model} has no chat template, so it cannot read messages: send a prompt to "
            "/v1/completions, or give its tokenizer a chat template and restart the workers",
            "model",
            code="no_chat_template",
        )


def chat_messages(
    messages: Sequence[Message], param: str = "messages", *, thoughts: bool = False
) -> list[dict[str, Any]]:
    """The messages of a job. `thoughts`: with those of the assistant.

    Raises:
        BadRequest: a part is no text, or calls and tools' results do not belong together.
    """
    made: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        where = f"{param}[{number}]"
        fields: dict[str, Any] = {"role": message.role}
        if isinstance(message, AssistantMessage):
            fields |= _assistant_fields(message, where)
            if thoughts and (thought := message.reasoning_content or message.reasoning):
                fields["reasoning_content"] = thought
        else:
            fields["content"] = content_text(message.content, f"{where}.content")
        if isinstance(message, ToolMessage):
            fields["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            fields["name"] = message.name
        made.append(fields)
    return with_results_in_order(
        made, lambda number: f"{param}[{number}].{_ID_FIELDS[made[number]['role']]}"
    )


#: The field of a message that holds the ids of calls, by its role.
_ID_FIELDS = {"assistant": "tool_calls", "tool": "tool_call_id"}


def with_results_in_order(
    messages: Sequence[dict[str, Any]], param: Callable[[int], str]
) -> list[dict[str, Any]]:
    """A job's messages, each run of tools' results in the order of the calls before it: most chat
    templates show no ids. Ids may come again in later turns. Calls of which none is answered may
    stand there, as where a person went on instead.

    `param`: the path of the ids of a message, by its number.

    Raises:
        BadRequest: an id is that of no call, of two calls or of two results, or a call beside
            others lacks its result.
    """
    made: list[dict[str, Any]] = []
    waiting: dict[str, int] = {}  # the ids of the calls without results, and their order
    for role, group in groupby(enumerate(messages), key=lambda pair: pair[1]["role"]):
        run = list(group)
        if role == "tool":
            made += _in_order_of_calls(run, waiting, param)
            waiting = {}
            continue
        if role == "assistant" and any("tool_calls" in message for _, message in run):
            waiting = {}
        for number, message in run:
            for call in message.get("tool_calls", ()):
                if call["id"] in waiting:
                    raise BadRequest(
                        f"{param(number)}: two calls have the id {call['id'][:80]!r}: give each an "
                        "id of its own",
                        param(number),
                    )
                waiting[call["id"]] = len(waiting)
            made.append(message)
    return made


def _in_order_of_calls(
    run: Sequence[tuple[int, dict[str, Any]]],
    waiting: Mapping[str, int],
    param: Callable[[int], str],
) -> list[dict[str, Any]]:
    """Raises: BadRequest"""
    results: dict[str, dict[str, Any]] = {}
    for number, message in run:
        call_id = message["tool_call_id"]
        if call_id not in waiting:
            raise BadRequest(
                f"{param(number)}: no call before it that waits for a result has the id "
                f"{call_id[:80]!r}",
                param(number),
            )
        if call_id in results:
            raise BadRequest(
                f"{param(number)}: the call {call_id[:80]!r} has two results: send one",
                param(number),
            )
        results[call_id] = message
    if missing := [call_id for call_id in waiting if call_id not in results]:
        number, _ = run[0]
        raise BadRequest(
            f"{param(number)}: calls beside it have no result: "
            f"{', '.join(repr(call_id[:80]) for call_id in missing[:8])}: send one for each call",
            param(number),
        )
    return [results[call_id] for call_id in waiting]


def content_text(content: Content | None, param: str) -> str:
    """The text of a content; parts stand on lines of their own.

    Raises:
        BadRequest: a part is an image, audio, a file, or nothing that is known.
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part_text(part, f"{param}[{i}]") for i, part in enumerate(content))


def _part_text(part: ContentPart, param: str) -> str:
    field = _TEXT_FIELDS.get(part.type)
    if field is None:
        raise BadRequest(
            f"{param}.type: {part.type[:64]!r} is not supported, this server's models read text "
            "alone",
            f"{param}.type",
            code="unsupported_content",
        )
    text: str | None = getattr(part, field)
    if text is None:
        raise BadRequest(
            f"{param}.{field}: is required and missing",
            f"{param}.{field}",
            code="missing_required_parameter",
        )
    return text


def _assistant_fields(message: AssistantMessage, where: str) -> dict[str, Any]:
    content = message.content if message.content is not None else message.refusal
    calls = message.tool_calls or []
    if content is None and not calls:
        raise BadRequest(
            f"{where}.content: is required where there are no tool_calls",
            f"{where}.content",
            code="missing_required_parameter",
        )
    fields: dict[str, Any] = {"content": content_text(content, f"{where}.content")}
    if calls:
        fields["tool_calls"] = [
            function_call(call.id, call.function.name, call.function.arguments) for call in calls
        ]
    return fields


def function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call in an assistant's message, with the arguments that the model wrote."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": _json_object(arguments)},
    }


def _json_object(arguments: str) -> str:
    """The text of an object, which chat templates want. A model may write something else, as where
    its answer was cut off, and is shown that again beside what its caller says of it. Some servers
    write nothing for a function without parameters."""
    if not arguments or arguments.isspace():
        return "{}"
    check_size(arguments.encode(errors="replace"), max_nesting=_MAX_NESTING, name="arguments")
    try:
        FunctionCall(name="f", arguments=arguments)
    except ValidationError:
        return json.dumps({"INVALID_JSON": arguments}, ensure_ascii=False)
    return arguments
