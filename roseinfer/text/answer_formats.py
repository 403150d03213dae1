"""How a chat template writes thoughts and calls, found out by letting it write them."""

import re
from typing import Any

from roseinfer.text.chat_template import template_of

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_name",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    },
}
_USER = {"role": "user", "content": "probe"}
_CALL = {
    "id": "probe0001",  # some templates accept no other length
    "type": "function",
    "function": {"name": "probe_name", "arguments": {"probe_key": "probe value"}},
}
_ASSISTANT = {"role": "assistant", "content": "", "tool_calls": [_CALL]}

_NAME = r'"name":\s*"probe_name"'
_OBJECT = r'\{\s*"probe_key":\s*"probe value"\s*\}'
#: The most particular first.
_FORMATS = {
    "hermes": rf'<tool_call>\s*\{{\s*{_NAME},\s*"arguments":\s*{_OBJECT}\s*\}}\s*</tool_call>',
    "llama3_json": rf'\{{\s*{_NAME},\s*"parameters":\s*{_OBJECT}\s*\}}',
}


def answer_formats(tokenizer: Any | None) -> dict[str, Any]:
    """By the names of fields of `AnnouncedModel`."""
    return {
        "tool_format": tool_format(tokenizer),
        "reasoning_format": reasoning_format(tokenizer),
    }


def reasoning_format(tokenizer: Any | None) -> str:
    """ "think" where the template knows its tags; "" where it knows no thoughts."""
    return "think" if "</think>" in template_of(tokenizer) else ""


def tool_format(tokenizer: Any | None) -> str:
    """The name of the format ("hermes", "llama3_json"); "" where the template has no tools, or
    writes calls in a way that is not known here."""
    if not template_of(tokenizer, [_TOOL]):
        return ""
    try:
        with_tools = _render(tokenizer, [_USER], [_TOOL])
        called = _render(tokenizer, [_USER, _ASSISTANT], [_TOOL])
        plain = _render(tokenizer, [_USER], None)
    except Exception:  # noqa: BLE001 - templates are programs: this one refuses tools
        return ""
    if with_tools == plain:
        return ""
    for name, pattern in _FORMATS.items():
        if re.search(pattern, called):
            return name
    return ""


def _render(tokenizer: Any, messages: list[Any], tools: list[Any] | None) -> str:
    text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    return text
