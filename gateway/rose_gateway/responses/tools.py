"""The tools of a response: what the model is told of each, and what its calls are shown as."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.responses.client_tools import BY_NAME
from rose_gateway.responses.schema import (
    AllowedTools,
    BuiltInChoice,
    BuiltInTool,
    CustomChoice,
    CustomTool,
    FunctionChoice,
    FunctionTool,
    GrammarFormat,
    HostedTool,
    NamespaceTool,
    Tool,
    ToolChoice,
)
from rose_gateway.tools.tools import MAX_TOOLS, Choice, Function, TextInput, checked_functions

_MAX_NAME = 64


class CallStyle(NamedTuple):
    """Of the calls of one name. It is kept with the job."""

    kind: Literal["function", "custom", "client"]
    name: str
    """as the request has it"""
    namespace: str | None = None

    @classmethod
    def from_record(cls, record: Sequence[Any]) -> "CallStyle":
        return cls(*record)


def model_name(name: str, namespace: str | None) -> str:
    """By which the model calls a tool of a namespace: the same each time."""
    if not namespace:
        return name
    joined = f"{namespace.rstrip('_')}__{name}"
    if len(joined) <= _MAX_NAME:
        return joined
    digest = hashlib.sha256(joined.encode(errors="replace")).hexdigest()[:8]
    return f"{joined[: _MAX_NAME - 9]}_{digest}"


def functions_of(tools: Sequence[Tool]) -> list[Function]:
    """What the model is told. Raises: BadRequest"""
    functions = [function for function, _ in _functions(tools)]
    if len(functions) > MAX_TOOLS:
        raise BadRequest(
            f"tools: with those of namespaces there are {len(functions)}, the limit is {MAX_TOOLS}",
            "tools",
        )
    return checked_functions(functions)


def styles_of(tools: Sequence[Tool]) -> dict[str, CallStyle]:
    """By the names that the model says; calls of other names are those of functions."""
    return {
        function.name: style
        for function, style in _functions(tools)
        if style.kind != "function" or style.namespace
    }


def choice_of(choice: ToolChoice | None, *, has_tools: bool) -> Choice:
    match choice:
        case FunctionChoice() | CustomChoice() | BuiltInChoice():
            return Choice("named", (_chosen(choice),))
        case AllowedTools(mode=mode, tools=tools):
            return Choice(mode, tuple(_chosen(tool) for tool in tools))
        case None | "auto":  # without tools there is nothing to choose
            return Choice("auto" if has_tools else "none")
    return Choice(choice)


def _chosen(choice: FunctionChoice | CustomChoice | BuiltInChoice) -> str:
    if isinstance(choice, BuiltInChoice):
        return choice.type
    return model_name(choice.name, choice.namespace)


def _functions(tools: Sequence[Tool]) -> Iterator[tuple[Function, CallStyle]]:
    for number, tool in enumerate(tools):
        param = f"tools[{number}]"
        match tool:
            case FunctionTool() | CustomTool():
                yield _function(tool, param)
            case NamespaceTool():
                for inner, one in enumerate(tool.tools):
                    yield _function(one, f"{param}.tools[{inner}]", tool)
            case BuiltInTool(type=name):
                of_client = BY_NAME[name]
                yield (
                    Function(name, of_client.description, of_client.parameters, param),
                    CallStyle("client", name),
                )
            case HostedTool():
                continue


def _function(
    tool: FunctionTool | CustomTool, param: str, of: NamespaceTool | None = None
) -> tuple[Function, CallStyle]:
    namespace = of.name if of else None
    name = model_name(tool.name, namespace)
    if isinstance(tool, FunctionTool):
        style = CallStyle("function", tool.name, namespace)
        strict = tool.strict is True
        return Function(name, tool.description, tool.parameters, param, strict), style
    text = TextInput()
    description = tool.description
    if isinstance(tool.format, GrammarFormat):
        text = TextInput(tool.format.syntax, tool.format.definition)
        what = "regular expression" if text.syntax == "regex" else "Lark grammar"
        said = f"The input must fit this {what}:\n{text.definition}"
        description = f"{description}\n\n{said}" if description else said
    function = Function(name, description, None, param, text=text)
    return function, CallStyle("custom", tool.name, namespace)
