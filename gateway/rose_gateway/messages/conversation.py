"""Anthropic's messages as those of a job."""

from collections.abc import Sequence
from typing import Any

from rose_gateway.access.sealing import Seal
from rose_gateway.answers.sealed_thoughts import opened_thought
from rose_gateway.messages.schema import (
    AssistantMessage,
    GivenTextBlock,
    PromptRequest,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import function_call, with_results_in_order
from rose_gateway.requests.sampling import json_text

#: Claude Code begins its system blocks with a line of this name, whose value changes with each
#: request: with it no prompt would have a prefix that is cached.
_BILLING = "x-anthropic-billing-header:"

_Texts = str | Sequence[TextBlock]


def chat_messages(
    request: PromptRequest, *, thoughts: bool = False, seal: Seal | None = None
) -> list[dict[str, Any]]:
    """The fields of a job's chat messages. Messages of one role that follow each other are one.
    `thoughts`: with those of the assistant. `seal`: opens the signatures of these; None where
    there are none.

    Raises:
        BadRequest: calls and results do not belong together, or a thought is not the one that was
            signed.
    """
    made: list[dict[str, Any]] = []
    paths: list[str] = []
    if system := _system_text(request.system):
        made.append({"role": "system", "content": system})
        paths.append("system")
    for number, message in enumerate(request.messages):
        where = f"messages[{number}]"
        begins = all(fields["role"] == "system" for fields in made)
        for fields in _of_message(message, where, begins=begins):
            if thoughts and isinstance(message, AssistantMessage):
                fields |= _thoughts(message, where, seal)
            if made and fields["role"] != "tool" and fields["role"] == made[-1]["role"]:
                _merge(made[-1], fields)
            else:
                made.append(fields)
                paths.append(where)
    return with_results_in_order(made, lambda number: f"{paths[number]}.content")


def _system_text(system: _Texts | None) -> str:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    return "\n".join(filter(None, map(_without_billing, texts)))


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _of_message(
    message: UserMessage | AssistantMessage | SystemMessage, where: str, *, begins: bool
) -> list[dict[str, Any]]:
    """`begins`: no other message has come before, but of the system."""
    match message:
        case AssistantMessage():
            return _assistant(message, where)
        case SystemMessage():
            if not (text := _system_text(message.content)):
                return []
            # Many chat templates refuse a system message that is not the first.
            role, shown = ("system", text) if begins else ("user", f"<system>\n{text}\n</system>")
            return [{"role": role, "content": shown}]
    if isinstance(message.content, str):
        return [{"role": "user", "content": message.content}]
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    made: list[dict[str, Any]] = [
        {"role": "tool", "content": _result_text(block), "tool_call_id": block.tool_use_id}
        for block in results
    ]
    if texts or not results:
        made.append({"role": "user", "content": "\n".join(texts)})
    return made


def _assistant(message: AssistantMessage, where: str) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": "assistant", "content": message.content}]
    texts = [block.text for block in message.content if isinstance(block, GivenTextBlock)]
    calls = [
        function_call(block.id, block.name, json_text(block.input, f"{where}.content[{i}].input"))
        for i, block in enumerate(message.content)
        if isinstance(block, ToolUseBlock)
    ]
    fields: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if calls:
        fields["tool_calls"] = calls
    return [fields]


def _thoughts(message: AssistantMessage, where: str, seal: Seal | None) -> dict[str, Any]:
    """Raises: BadRequest: a signature is not that of its thought."""
    texts: list[str] = []
    for number, block in enumerate(message.content):
        if isinstance(block, ThinkingBlock):
            path = f"{where}.content[{number}].signature"
            text = block.thinking
            if block.signature and seal is not None:
                text = opened_thought(block.signature, seal, path)
                if block.thinking not in ("", text):
                    raise BadRequest(
                        f"{path}: the thought is another than the one that was signed: send it as "
                        "it came, or leave it out",
                        path,
                        code="invalid_seal",
                    )
            texts.append(text)
    thought = "\n".join(filter(None, texts))
    return {"reasoning_content": thought} if thought else {}


def _result_text(block: ToolResultBlock) -> str:
    """A chat template has no word for a result that is an error: the text says it."""
    given = block.content or ""
    text = given if isinstance(given, str) else "\n".join(part.text for part in given)
    if block.is_error and not text.lower().startswith("error"):
        return f"Error: {text}" if text else "Error"
    return text


def _merge(message: dict[str, Any], more: dict[str, Any]) -> None:
    for name in ("content", "reasoning_content"):
        texts = [fields[name] for fields in (message, more) if fields.get(name)]
        if texts or name == "content":
            message[name] = "\n".join(texts)
    if calls := more.get("tool_calls"):
        message["tool_calls"] = [*message.get("tool_calls", ()), *calls]
