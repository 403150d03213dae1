"""The items of a conversation: as requests bring them, as the API shows them, as chat messages."""

from collections.abc import Mapping, Sequence
from typing import Any

from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import (
    Content,
    content_text,
    function_call,
    with_results_in_order,
)
from rose_gateway.responses.parameters import Item, ResponseParameters
from rose_gateway.responses.schema import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputMessage,
    ItemReference,
    OutputMessage,
    ReasoningItem,
)


def input_items(given: str | Sequence[InputItem], referred: Mapping[str, Item]) -> tuple[Item, ...]:
    """The items of a request, as they are kept: without an id where the request gives none.
    `referred`: those that it names, by their ids.

    Raises: BadRequest: a part of a content is no text.
    """
    if isinstance(given, str):
        return (_message("user", given, "input"),)
    return tuple(_item(item, f"input[{number}]", referred) for number, item in enumerate(given))


def shown_input(parameters: ResponseParameters, job_id: str) -> tuple[Item, ...]:
    """The whole input of a response, the oldest item first. Every item has an id, the same each
    time."""
    own = (
        {"id": _own_id(item, job_id, number), **item}
        for number, item in enumerate(parameters.items)
    )
    return (*parameters.history, *own)


def chat_messages(items: Sequence[Item], instructions: str | None) -> list[dict[str, Any]]:
    """The fields of a job's chat messages. A text of the assistant and the calls that follow it are
    one message. A call that was cut off is left out where nobody answers it: it was never made.

    Raises:
        BadRequest: there is no message at all, or calls and outputs do not belong together.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    answered = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    for item in items:
        match item["type"]:
            case "message":
                messages.append({"role": item["role"], "content": _text(item["content"])})
            case "function_call" if item["status"] != "incomplete" or item["call_id"] in answered:
                _add_call(messages, item)
            case "function_call_output":
                call_id = item["call_id"]
                result = {"role": "tool", "content": item["output"], "tool_call_id": call_id}
                messages.append(result)
    if not messages:
        raise BadRequest("input: there is nothing to answer: send a text or a message", "input")
    return with_results_in_order(messages, lambda _: "input")


def _item(item: InputItem, where: str, referred: Mapping[str, Item]) -> Item:
    if isinstance(item, ItemReference):
        return referred[item.id]
    identity = {} if item.id is None else {"id": item.id}
    status = item.status or "completed"
    match item:
        case InputMessage() | OutputMessage():
            return {**identity, **_message(item.role, item.content, where), "status": status}
        case FunctionCall():
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return {**identity, "type": item.type, "status": status, **call}
        case FunctionCallOutput():
            output = content_text(item.output, f"{where}.output")
            call = {"call_id": item.call_id, "output": output}
            return {**identity, "type": item.type, "status": status, **call}
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


_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def _own_id(item: Item, job_id: str, number: int) -> str:
    return f"{_PREFIXES[item['type']]}_{job_id}_in_{number}"


def _text(content: Sequence[Item]) -> str:
    return "\n".join(part["text"] for part in content)


def _add_call(messages: list[dict[str, Any]], item: Item) -> None:
    call = function_call(item["call_id"], item["name"], item["arguments"])
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)
