"""How a chat template writes thoughts and calls, found out by letting it write them."""

import re
from typing import Any

from rose.formats.recognition import REASONING_MARKS, TOOL_PATTERNS
from rose.formats.registry import GENERIC
from roseinfer.text.chat_template import template_of, variables_of

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_name",
        "description": "probe",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "probe"}},
            "required": ["probe_key"],
        },
    },
}
_USER = {"role": "user", "content": "probe"}


def _assistant(arguments: Any) -> dict[str, Any]:
    call = {
        "id": "probe0001",  # some templates accept no other length
        "type": "function",
        "function": {"name": "probe_name", "arguments": arguments},
    }
    return {"role": "assistant", "content": "", "tool_calls": [call]}


#: Some templates take arguments as JSON text alone.
_ASSISTANTS = (_assistant({"probe_key": "probe value"}), _assistant('{"probe_key": "probe value"}'))


def answer_formats(tokenizer: Any | None) -> dict[str, Any]:
    """By the names of fields of `AnnouncedModel`."""
    return {
        "tool_format": tool_format(tokenizer),
        "reasoning_format": reasoning_format(tokenizer),
        "template_variables": variables_of(tokenizer),
    }


def reasoning_format(tokenizer: Any | None) -> str:
    """The first one whose mark stands in the template; "" where it knows no thoughts."""
    template = template_of(tokenizer)
    return next((name for mark, name in REASONING_MARKS if mark in template), "")


def tool_format(tokenizer: Any | None) -> str:
    """The name of the format; generic where the template has no tools, or writes calls in a way
    that is not known here; "" where there is none."""
    if not template_of(tokenizer):
        return _format_of(tokenizer) if template_of(tokenizer, [_TOOL]) else ""
    return _format_of(tokenizer) or GENERIC


def _format_of(tokenizer: Any) -> str:
    with_tools = _rendered(tokenizer, [_USER], [_TOOL])
    if not with_tools or with_tools == _rendered(tokenizer, [_USER], None):
        return ""
    for assistant in _ASSISTANTS:
        called = _rendered(tokenizer, [_USER, assistant], [_TOOL])
        for name, pattern in TOOL_PATTERNS.items():
            if re.search(pattern, called):
                return name
    return ""


def _rendered(tokenizer: Any, messages: list[Any], tools: list[Any] | None) -> str:
    """ "" where the template refuses it."""
    try:
        text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    except Exception:  # noqa: BLE001 - templates are programs: whatever they raise is a refusal
        return ""
    return text
