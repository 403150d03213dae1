"""Tools of OpenAI's that the client runs, and whose calls have items of their own.

The model is told of each as a function. Its arguments are the fields of the item's action.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rose_gateway.responses.parameters import Item


class ClientTool(NamedTuple):
    name: str
    """of the function; it is the tool's type, too"""
    description: str
    properties: Mapping[str, Any]
    """JSON schemas of the arguments"""
    required: tuple[str, ...]
    field: str
    """of the call's item, which holds the arguments"""
    fixed: Mapping[str, Any] = {}
    """what that field has beside them"""
    prefix: str = ""
    """of ids"""

    @property
    def call_type(self) -> str:
        return f"{self.name}_call"

    @property
    def output_type(self) -> str:
        return f"{self.name}_call_output"

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }

    def fields(self, arguments: str) -> dict[str, Any]:
        """Of a call's item. What the arguments lack, or have beside it, does not show."""
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = {}
        if not isinstance(given, dict):
            given = {}
        known = {
            name: given.get(name) if _fits(given.get(name), schema) else _empty(schema)
            for name, schema in self.properties.items()
        }
        return {self.field: {**self.fixed, **known}}

    def arguments(self, item: Item) -> str:
        """As the model wrote them."""
        action = item[self.field]
        given = {name: action.get(name) for name in self.properties}
        return json.dumps(
            {name: value for name, value in given.items() if value not in (None, {})},
            ensure_ascii=False,
        )


_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_COUNT = {"type": ["integer", "null"]}
_TEXT_OR_NOT = {"type": ["string", "null"]}

CLIENT_TOOLS = (
    ClientTool(
        "local_shell",
        "Runs a command on the user's machine and returns its output.",
        {
            "command": _TEXTS,
            "env": {"type": "object", "additionalProperties": _TEXT},
            "timeout_ms": _COUNT,
            "user": _TEXT_OR_NOT,
            "working_directory": _TEXT_OR_NOT,
        },
        ("command",),
        "action",
        {"type": "exec"},
        "lsh",
    ),
    ClientTool(
        "shell",
        "Runs commands in a shell, one after another, and returns their outputs.",
        {"commands": _TEXTS, "timeout_ms": _COUNT, "max_output_length": _COUNT},
        ("commands",),
        "action",
        prefix="sh",
    ),
    ClientTool(
        "apply_patch",
        "Creates, updates or deletes a file. The diff has a line for each line of the file's part "
        "that it is about, after a space, + or -, and lines of @@ between parts.",
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": _TEXT,
        },
        ("type", "path"),
        "operation",
        prefix="apc",
    ),
)

BY_NAME = {tool.name: tool for tool in CLIENT_TOOLS}
BY_CALL = {tool.call_type: tool for tool in CLIENT_TOOLS}

_TYPES: Mapping[str, type] = {"string": str, "integer": int, "array": list, "object": dict}


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if value is None:
        return "null" in names
    if not any(isinstance(value, _TYPES[name]) for name in names if name != "null"):
        return False
    texts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return all(isinstance(text, str) for text in texts)


def _empty(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema["type"]
    return None if isinstance(kind, list) else _TYPES[kind]()
