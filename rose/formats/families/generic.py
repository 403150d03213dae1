"""Tools for models whose chat template knows none: told in a text, and called as the text says.

The conversation that the template gets has plain messages only. Calls are written as Hermes' are.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = "You can call functions. These are their definitions:"
_TAIL = (
    "To call one, write nothing but a line with this, and wait for its result:\n"
    '<tool_call>{"name": "NAME", "arguments": {...}}</tool_call>\n'
    "Its result comes between <tool_response> tags. Call none where none is needed."
)


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], definitions: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The messages of a job, with the definitions, the calls and their results as text."""
    made: list[dict[str, Any]] = []
    for message in messages:
        fields = _plain(message)
        # Many templates want the roles to take turns.
        if made and fields["role"] == made[-1]["role"] == "user":
            made[-1]["content"] = _joined(made[-1]["content"], fields["content"])
        else:
            made.append(fields)
    if definitions:
        _tell(made, definitions)
    return made


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in message.items() if key != "tool_calls"}
    if calls := message.get("tool_calls"):
        fields["content"] = _joined(message["content"], "\n".join(map(_written, calls)))
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    return fields


def _written(call: Mapping[str, Any]) -> str:
    function = call["function"]
    name, arguments = json.dumps(function["name"]), function["arguments"]
    return f'<tool_call>{{"name": {name}, "arguments": {arguments}}}</tool_call>'


def _tell(messages: list[dict[str, Any]], definitions: Sequence[Mapping[str, Any]]) -> None:
    """In the system's message, or before what the user says: not every template has a system."""
    functions = [json.dumps(one["function"], ensure_ascii=False) for one in definitions]
    text = "\n".join([_HEAD, *functions, _TAIL])
    first = messages[0]
    if first["role"] in ("system", "developer"):
        first["content"] = _joined(first["content"], text)
    elif first["role"] == "user":
        first["content"] = _joined(text, first["content"])
    else:
        messages.insert(0, {"role": "user", "content": text})


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
