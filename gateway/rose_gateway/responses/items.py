"""The items of a conversation: as requests bring them, as the API shows them, as chat messages."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from rose_gateway.access.sealing import Seal
from rose_gateway.answers.sealed_thoughts import opened_thought
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import (
    Content,
    content_text,
    function_call,
    with_results_in_order,
)
from rose_gateway.responses.client_tools import BY_CALL, CLIENT_TOOLS
from rose_gateway.responses.parameters import Item, ResponseParameters
from rose_gateway.responses.schema import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CompactionItem,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    HostedCall,
    InputItem,
    InputMessage,
    ItemReference,
    LocalShellCall,
    LocalShellCallOutput,
    OutputMessage,
    ReasoningItem,
    ShellCall,
    ShellCallOutput,
)
from rose_gateway.responses.tools import model_name
from rose_gateway.tools.text_input import arguments_of


def input_items(
    given: str | Sequence[InputItem], referred: Mapping[str, Item], seal: Seal | None = None
) -> tuple[Item, ...]:
    """The items of a request, as they are kept: without an id where the request gives none.
    `referred`: those that it names, by their ids. `seal`: opens thoughts; None where nobody reads
    them.

    Raises: BadRequest: a part of a content is no text, or a seal is broken.
    """
    if isinstance(given, str):
        return (_message("user", given, "input"),)
    items = (_item(item, f"input[{number}]", referred) for number, item in enumerate(given))
    return tuple(
        item if seal is None else _opened(item, f"input[{number}]", seal)
        for number, item in enumerate(items)
    )


def _opened(item: Item, where: str, seal: Seal) -> Item:
    """A reasoning item has what is sealed in it as its content. Raises: BadRequest"""
    sealed = item.get("encrypted_content") if item["type"] == "reasoning" else None
    if not sealed:
        return item
    text = opened_thought(sealed, seal, f"{where}.encrypted_content")
    return {**item, "content": [{"type": "reasoning_text", "text": text}]}


def shown_input(parameters: ResponseParameters, job_id: str) -> tuple[Item, ...]:
    """The input of a response without the turns before it, the oldest item first. Every item has
    an id, the same each time."""
    own = (
        {"id": _own_id(item, job_id, number), **item}
        for number, item in enumerate(parameters.items)
    )
    return (*parameters.history, *own)


def chat_messages(
    items: Sequence[Item], instructions: str | None, *, thoughts: bool = False
) -> list[dict[str, Any]]:
    """The fields of a job's chat messages. A text of the assistant and its calls that no output
    stands between are one message, in whichever order they come. A call that was cut off is left
    out where nobody answers it: it was never made.
    `thoughts`: the model has thoughts, and those before a message are its own.

    Raises:
        BadRequest: there is no message at all, or calls and outputs do not belong together.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    answered = {item["call_id"] for item in items if item["type"] in _OUTPUTS}
    thought = ""
    for item in items:
        kind, before = item["type"], len(messages)
        if kind == "reasoning":
            thought = _thought_of(item) if thoughts else ""
        elif kind == "message":
            text, last = _text(item["content"]), messages[-1] if messages else {}
            if item["role"] == "assistant" and last.get("tool_calls") and not thought:
                last["content"] = "\n".join(filter(None, (last["content"], text)))
            else:
                messages.append({"role": item["role"], "content": text})
        elif kind in _CALLS and (item["status"] != "incomplete" or item["call_id"] in answered):
            _add_call(messages, item)
        elif kind == "compaction":
            said = f"{_SUMMARY}\n\n{_summary(item['encrypted_content'], 'input')}"
            messages.append({"role": "user", "content": said})
        elif kind in _OUTPUTS:
            call_id, output = item["call_id"], _output_text(item)
            messages.append({"role": "tool", "content": output, "tool_call_id": call_id})
        if thought and len(messages) > before:
            if messages[-1]["role"] == "assistant":
                messages[-1]["reasoning_content"] = thought
            thought = ""
    if not messages:
        raise BadRequest("input: there is nothing to answer: send a text or a message", "input")
    return with_results_in_order(messages, lambda _: "input")


def _item(item: InputItem, where: str, referred: Mapping[str, Item]) -> Item:
    if isinstance(item, ItemReference):
        return referred[item.id]
    identity = {} if item.id is None else {"id": item.id}
    if isinstance(item, CompactionItem):
        _summary(item.encrypted_content, f"{where}.encrypted_content")
        return {**identity, "type": item.type, "encrypted_content": item.encrypted_content}
    status = item.status or "completed"
    match item:
        case InputMessage() | OutputMessage():
            return {**identity, **_message(item.role, item.content, where), "status": status}
        case FunctionCall() | CustomToolCall() | ShellCall() | ApplyPatchCall():
            return {**identity, **_given(item), "status": status}
        case FunctionCallOutput() | CustomToolCallOutput():
            output = content_text(item.output, f"{where}.output")
            call = {"call_id": item.call_id, "output": output}
            return {**identity, "type": item.type, "status": status, **call}
        case LocalShellCall() | LocalShellCallOutput():
            call = {"call_id": item.call_id or _call_id(item.id, where)}
            return {**identity, **_given(item), **call, "status": status}
        case ShellCallOutput() | ApplyPatchCallOutput():
            return {**identity, **_given(item), "status": status}
        case HostedCall():
            return {**identity, "type": item.type, "status": item.status or "completed"}
        case ReasoningItem():
            fields = item.model_dump(exclude={"id", "status"}, exclude_none=True)
            return {**identity, **fields}
    raise TypeError(f"no item: {type(item).__name__}")


def _message(role: str, content: Content, where: str) -> Item:
    text = content_text(content, f"{where}.content")
    texts = [text] if isinstance(content, str) else [content_text([part], "") for part in content]
    return {
        "type": "message",
        "status": "completed",
        "role": role,
        "content": [_part(role, text) for text in texts],
    }


def _part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


_SUMMARY = "A summary of the conversation so far:"
_PACKED = "rose-summary-1."


def packed_summary(text: str) -> str:
    """As the item of a summary holds it."""
    return _PACKED + base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def _summary(packed: str, param: str) -> str:
    """Raises: BadRequest: no server of this kind has made it."""
    try:
        data = base64.b64decode(packed.removeprefix(_PACKED), b"-_", validate=True)
        text = data.decode() if packed.startswith(_PACKED) else None
    except ValueError:
        text = None
    if text is None:
        raise BadRequest(f"{param}: this is no summary that was made here", param)
    return text


def _given(item: BaseModel) -> Item:
    return item.model_dump(exclude={"id", "status"}, exclude_none=True)


def _call_id(item_id: str | None, where: str) -> str:
    """Of a call that has no other. Raises: BadRequest"""
    if item_id is None:
        raise BadRequest(
            f"{where}.call_id: is required and missing",
            f"{where}.call_id",
            code="missing_required_parameter",
        )
    return item_id[:128]


#: Of the ids of items, by their types.
PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
    "reasoning": "rs",
    **{tool.call_type: tool.prefix for tool in CLIENT_TOOLS},
    **{tool.output_type: f"{tool.prefix}o" for tool in CLIENT_TOOLS},
}
_HOSTED_PREFIX = "ht"
_CALLS = ("function_call", "custom_tool_call", *(tool.call_type for tool in CLIENT_TOOLS))
_OUTPUTS = frozenset(f"{kind}_output" for kind in _CALLS)


def _own_id(item: Item, job_id: str, number: int) -> str:
    return f"{PREFIXES.get(item['type'], _HOSTED_PREFIX)}_{job_id}_in_{number}"


def _thought_of(item: Item) -> str:
    parts = item.get("content") or item.get("summary") or ()
    return "\n".join(text for part in parts if isinstance(text := part.get("text"), str))


def _text(content: Sequence[Item]) -> str:
    return "\n".join(part["text"] for part in content)


def _called(item: Item) -> tuple[str, str]:
    """The name by which the model calls it, and the arguments as it writes them."""
    if tool := BY_CALL.get(item["type"]):
        return tool.name, tool.arguments(item)
    name = model_name(item["name"], item.get("namespace"))
    is_custom = item["type"] == "custom_tool_call"
    return name, arguments_of(item["input"]) if is_custom else item["arguments"]


def _output_text(item: Item) -> str:
    output = item.get("output") or ""
    if isinstance(output, list):
        return json.dumps(output, ensure_ascii=False)
    if item.get("status") == "failed":
        return f"failed: {output}" if output else "failed"
    return str(output)


def _add_call(messages: list[dict[str, Any]], item: Item) -> None:
    name, arguments = _called(item)
    call = function_call(item["call_id"], name, arguments)
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)
