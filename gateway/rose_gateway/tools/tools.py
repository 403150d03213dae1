"""Functions that a model may or must call: what a request says of them, and what a job needs.

tool_choice           what makes the model call             what reads it from the output
a named function      a grammar: its arguments              NamedParser
a named custom tool   its own grammar                       TextInputParser
required              a grammar: calls, one a line          CallsParser
auto                  its chat template                     CallsParser for the template's format
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from rose.formats.argument_types import Types, types_of
from rose.formats.call_grammar import Callee, CallGrammar, TextRules
from rose.formats.call_parser import (
    CallsParser,
    FirstCallParser,
    NamedParser,
    TextInputParser,
)
from rose.formats.parts import Parser
from rose.formats.registry import (
    TOOL_FORMATS,
    parser_of,
    shown_prompt_end,
    shown_special,
    thought_tags,
)
from rose.sampling import JSON_LAYOUT
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import CacheControl
from rose_gateway.requests.json_schema import followed
from rose_gateway.requests.sampling import (
    MAX_GRAMMAR_BYTES,
    NAME_PATTERN,
    RequestModel,
    bounded,
    constraints,
    json_grammar,
    json_text,
)
from rose_gateway.requests.warnings import not_followed
from rose_gateway.tools.text_in_json import NotFollowed, lark_in_json, regex_in_json

MAX_TOOLS = 128

#: The most calls of one answer where a grammar makes them.
_MAX_CALLS = 8


#: How a worker names a place in the grammar of `calls_grammar`.
_IN_ARGUMENTS = re.compile(r"grammar\.arguments_(\d+)")
_AT_LINE = re.compile(r"grammar: at (\d+)\(\d+\): (?:failed to compile JSON schema: )?")
_FIRST_ARGUMENTS_LINE = 4


def _schema_of(name: str) -> str:
    return f"tools: the parameters of {name!r}"


class FunctionDefinition(RequestModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, description="JSON schema of the arguments; by default there are none"
    )
    strict: bool | None = Field(
        default=None,
        description="true refuses what a grammar cannot follow of the schema, such as uniqueItems; "
        "else it is left out of the grammar of a required call",
    )


class ChatTool(RequestModel):
    type: Literal["function"]
    function: FunctionDefinition
    cache_control: CacheControl = None


class NamedFunction(RequestModel):
    name: str


class NamedChoice(RequestModel):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(RequestModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedChoice(RequestModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ChatToolChoice = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice


_SLASH = re.compile(r"(\\.)|/", re.DOTALL)


class TextInput(NamedTuple):
    """What a tool is given is a text, and no object: of any form, or one that fits a grammar."""

    syntax: Literal["text", "lark", "regex"] = "text"
    definition: str = ""

    def rules(self, name: str, param: str) -> str:
        """The rule `name`: an object whose input is the text, and what it needs.

        Raises: BadRequest
        """
        try:
            start, rules = self._in_json(name)
        except NotFollowed as error:
            raise BadRequest(
                f"{param}.format.definition: beside other tools this cannot be followed: {error}: "
                "name the tool in tool_choice",
                f"{param}.format.definition",
                code="unsupported_grammar",
            ) from None
        return f'{name}: "{{\\"input\\": \\"" {start} "\\"}}"\n{rules}'

    def string(self, name: str) -> str:
        """The rule `name`: the text as a JSON string, and what it needs. Raises: NotFollowed"""
        start, rules = self._in_json(name)
        return f'{name}: "\\"" {start} "\\""\n{rules}'

    def _in_json(self, name: str) -> tuple[str, str]:
        """The text within a JSON string, and the rules that it needs. Raises: NotFollowed"""
        if self.syntax == "regex":
            slashes = _SLASH.sub(lambda match: match[1] or "\\/", regex_in_json(self.definition))
            return f"/{slashes}/", ""
        prefix = f"text_{name}_"
        return f"{prefix}R_START".upper(), lark_in_json(self.definition, prefix)


_INPUT_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class Function(NamedTuple):
    """A function that the model may call, and the path of its definition in the request."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    param: str
    strict: bool = False
    """what a grammar cannot follow of its schema is refused; else it is left out of the grammar"""
    text: TextInput | None = None
    """it takes a text; its parameters are an object that has it"""

    @property
    def definition(self) -> dict[str, Any]:
        """As chat templates know it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description or "",
                "parameters": self.schema,
            },
        }

    @property
    def schema(self) -> dict[str, Any]:
        """Of the arguments: always an object."""
        if self.text is not None:
            return _INPUT_SCHEMA
        if not self.parameters:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}

    def followed_schema(self, left_out: list[str] | None = None) -> dict[str, Any]:
        """As a grammar follows it; `left_out` is given what it leaves out. Raises: BadRequest"""
        where, owner = f"{self.param}.parameters", f"the function {self.name!r}"
        return followed(self.schema, where, strict=self.strict, owner=owner, left_out=left_out)


class Choice(NamedTuple):
    """Which functions the model may call; `names` is None for all of them."""

    mode: Literal["none", "auto", "required", "named"]
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls look in the output. It is kept with the job: every replay reads the same."""

    kind: str = "text"
    """text; named or required, where a grammar makes the calls; input, where all of the output is
    the text that a named tool is given; else a format of calls"""
    names: tuple[str, ...] = ()
    thoughts: str = ""
    """the format of thoughts, "" for none"""
    types: Types = field(default_factory=dict)
    """of arguments, where the format writes them as text"""
    once: bool = False
    """only the first call counts, and nothing behind it"""

    @property
    def is_plain(self) -> bool:
        """The output is the answer, as it is."""
        return self.kind == "text" and not self.thoughts

    @property
    def must_call(self) -> bool:
        """There are calls, and nothing else."""
        return self.kind in ("named", "required", "input")

    def parser(self) -> Parser:
        return parser_of(self._calls_parser(), self.thoughts, self.kind)

    def _calls_parser(self) -> Parser | None:
        match self.kind:
            case "text":
                return None
            case "named":
                return NamedParser(self.names[0])
            case "required":
                return CallsParser(frozenset(self.names))
            case "input":
                return TextInputParser(self.names[0])
        parser = TOOL_FORMATS[self.kind].parser(frozenset(self.names), self.types)
        return FirstCallParser(parser) if self.once else parser

    @property
    def sampling(self) -> dict[str, Any]:
        """Fields of SamplingParams that the parser needs."""
        fields = {
            "shown_special": shown_special(self.kind, self.thoughts),
            "shown_prompt_end": shown_prompt_end(self.thoughts),
            "thought_tags": thought_tags(self.thoughts, self.kind),
        }
        return {name: value for name, value in fields.items() if value}

    def with_thoughts(self, reasoning_format: str) -> CallForm:
        return replace(self, thoughts=reasoning_format)

    def in_tools(self, message: str) -> str | None:
        """What a worker says of the grammar that made the calls, as said of a function's schema;
        None for anything else."""
        if self.kind == "named" and message.startswith("json_schema"):
            return f"{_schema_of(self.names[0])}{message.removeprefix('json_schema')}"
        if self.kind == "input":
            return f"tools: the format of {self.names[0]!r}: {message}"
        if self.kind != "required":
            return None
        if path := _IN_ARGUMENTS.match(message):
            number, rest = int(path[1]), message[path.end() :]
        elif line := _AT_LINE.match(message):
            number, rest = (int(line[1]) - _FIRST_ARGUMENTS_LINE) // 2, f": {message[line.end() :]}"
        else:
            return None
        return f"{_schema_of(self.names[number])}{rest}" if 0 <= number < len(self.names) else None

    def as_record(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "names": list(self.names),
            "thoughts": self.thoughts,
            "types": self.types,
            "once": self.once,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | Sequence[str]) -> CallForm:
        """A sequence is how older gateways kept it: the kind, then the names."""
        if isinstance(record, Mapping):
            return cls(**{**record, "names": tuple(record["names"])}) if record else cls()
        kind, *names = record or ["text"]
        return cls(kind, tuple(names))


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What a job needs so that its model calls functions, and how to read its output."""

    form: CallForm = CallForm()
    definitions: tuple[dict[str, Any], ...] = ()
    """for the chat template"""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """fields of SamplingParams: a grammar"""
    lazy: Mapping[str, Any] = field(default_factory=dict)
    """as well, where nothing else says what the text is: a grammar of calls among free text"""
    stop: tuple[str, ...] = ()
    """stop texts beside those of the request"""
    warnings: Sequence[dict[str, Any]] = ()
    """what is not followed, as a record keeps it"""

    def with_lazy(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request's SamplingParams, and the grammar of its calls."""
        is_free = not any(constraints(sampling)) and not sampling.get("ignore_eos")
        return {**sampling, **(self.lazy if is_free else {})}


def chat_functions(tools: Sequence[ChatTool]) -> list[Function]:
    """Raises: BadRequest"""
    return checked_functions(
        Function(
            tool.function.name,
            tool.function.description,
            tool.function.parameters,
            f"tools[{number}].function",
            tool.function.strict is True,
        )
        for number, tool in enumerate(tools)
    )


def checked_functions(functions: Any) -> list[Function]:
    """Raises: BadRequest: a name or a schema of parameters is impossible, or a name comes twice."""
    checked: list[Function] = []
    known: set[str] = set()
    for function in functions:
        if not re.fullmatch(NAME_PATTERN, function.name):
            raise BadRequest(
                f"{function.param}.name: {function.name[:80]!r} must be 1 to 64 letters, digits, "
                "underscores and dashes",
                f"{function.param}.name",
            )
        if function.name in known:
            raise BadRequest(
                f"{function.param}.name: {function.name!r} is there twice", f"{function.param}.name"
            )
        where = f"{function.param}.parameters"
        if function.schema["type"] != "object":
            raise BadRequest(f"{where}.type: must be 'object'", f"{where}.type")
        bounded(json_text(function.schema, where), where)
        known.add(function.name)
        checked.append(function)
    return checked


def chat_choice(choice: ChatToolChoice | None, *, has_tools: bool) -> Choice:
    match choice:
        case None:
            return Choice("auto" if has_tools else "none")
        case NamedChoice():
            return Choice("named", (choice.function.name,))
        case AllowedChoice(allowed_tools=allowed):
            return Choice(allowed.mode, tuple(tool.function.name for tool in allowed.tools))
    return Choice(choice)


def plan_tools(
    functions: Sequence[Function],
    choice: Choice,
    *,
    tool_format: str,
    parallel: bool = True,
    is_default: bool = False,
) -> ToolPlan:
    """`tool_format` is what the workers announce of their chat template, empty where nobody knows.
    `is_default` says that the request has no tool_choice.

    Raises:
        BadRequest
    """
    if choice.mode == "none" and not choice.names:
        return ToolPlan()
    allowed = _allowed(functions, choice)
    definitions = tuple(function.definition for function in allowed)
    names = tuple(function.name for function in allowed)
    left_out: list[str] = []
    match choice.mode:
        case "named" if allowed[0].text is not None:
            return ToolPlan(CallForm("input", names), definitions, _text_grammar(allowed[0]))
        case "named":
            schema = allowed[0].followed_schema(left_out)
            fields = json_grammar(schema, f"{allowed[0].param}.parameters")
            form, warnings = CallForm("named", names), not_followed(left_out)
            return ToolPlan(form, definitions, fields, warnings=warnings)
        case "required":
            source = calls_grammar(allowed, parallel=parallel, left_out=left_out)
            fields = {"grammar": bounded(source, "tools")}
            form, warnings = CallForm("required", names), not_followed(left_out)
            return ToolPlan(form, definitions, fields, warnings=warnings)
    if tool_format not in TOOL_FORMATS:
        raise BadRequest(
            "tool_choice 'auto' needs a model whose chat template teaches a format of calls that "
            "this server knows, and this model's does not: say 'required', name a function, or "
            "say 'none'",
            "tools" if is_default else "tool_choice",
            code="unsupported_tool_choice",
        )
    types = {}
    if TOOL_FORMATS[tool_format].is_typed:
        types = {function.name: types_of(function.schema) for function in allowed}
    form = CallForm(tool_format, names, types=types, once=not parallel)
    lazy = _lazy_grammar(allowed, tool_format, parallel=parallel, left_out=left_out)
    return ToolPlan(
        form,
        definitions,
        lazy=lazy,
        stop=_stops(tool_format, once=not parallel and not lazy),
        warnings=not_followed(left_out),
    )


def _lazy_grammar(
    functions: Sequence[Function], tool_format: str, *, parallel: bool, left_out: list[str]
) -> dict[str, Any]:
    """Fields of SamplingParams that make calls fit their schemas; none where the grammar is too
    long. `left_out` is given what it does not follow.

    Raises: BadRequest: a strict schema cannot be followed.
    """
    callees = [_callee(function, left_out) for function in functions]
    grammar = CallGrammar(callees, parallel=parallel, left_out=left_out)
    triggers = TOOL_FORMATS[tool_format].grammar(grammar)
    source = grammar.source
    if (size := len(source.encode())) > MAX_GRAMMAR_BYTES:
        left_out[:] = [
            f"the grammar of the calls has {size} bytes, the limit is {MAX_GRAMMAR_BYTES}"
        ]
        return {}
    fields: dict[str, Any] = {"grammar": source, "grammar_triggers": triggers}
    if not parallel:
        fields["grammar_once"] = True
    return fields


def _callee(function: Function, left_out: list[str]) -> Callee:
    """Raises: BadRequest: a strict schema cannot be followed."""
    schema = function.followed_schema(left_out)
    schema["x-guidance"] = {**JSON_LAYOUT, **schema.get("x-guidance", {})}
    text = function.text
    if text is not None and text.syntax != "text":
        try:
            text.string("input")
        except NotFollowed as error:
            left_out.append(f"{function.name}: its grammar: {error}")
        else:
            rules = TextRules(text.syntax, text.definition, text.string)
            return Callee(function.name, schema, partial(_arguments_rules, function), rules)
    plain = function._replace(text=None, parameters=schema)
    return Callee(function.name, schema, partial(_arguments_rules, plain))


def _text_grammar(function: Function) -> dict[str, Any]:
    """Raises: BadRequest: it is too long"""
    syntax, definition = function.text or TextInput()
    if syntax == "text":
        return {}
    source = bounded(definition, f"{function.param}.format.definition")
    return {"regex" if syntax == "regex" else "grammar": source}


def _stops(tool_format: str, *, once: bool) -> tuple[str, ...]:
    """Texts that end an answer. `once`: the first call does, where a text of its own ends it."""
    form = TOOL_FORMATS[tool_format]
    return form.ends or ((form.end,) if once and form.end else ())


def _allowed(functions: Sequence[Function], choice: Choice) -> list[Function]:
    """Raises: BadRequest: there are none, or a name that is none of them."""
    if not functions:
        raise BadRequest(
            f"tool_choice {choice.mode!r} needs tools, and there are none", "tool_choice"
        )
    if choice.names is None:
        return list(functions)
    by_name = {function.name: function for function in functions}
    for name in choice.names:
        if name not in by_name:
            raise BadRequest(
                f"tool_choice: {name[:80]!r} is none of the functions in tools", "tool_choice"
            )
    return [by_name[name] for name in dict.fromkeys(choice.names)]


def calls_grammar(
    functions: Sequence[Function], *, parallel: bool, left_out: list[str] | None = None
) -> str:
    """Lark, in llguidance's dialect: calls of `functions`, one a line. `left_out` is given what it
    does not follow of their schemas."""
    more = rf' ("\n" call){{0,{_MAX_CALLS - 1}}}' if parallel else ""
    rules = [f"start: call{more}"]
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(functions))))
    more_rules: list[str] = []
    for number, function in enumerate(functions):
        head = json.dumps('{"name": ' + json.dumps(function.name) + ', "arguments": ')
        rules.append(f'call_{number}: {head} arguments_{number} "}}"')
        made = _arguments_rules(function, f"arguments_{number}", left_out)
        first, *others = made.split("\n", 1)
        rules.append(first)
        more_rules += others
    return "\n".join([*rules, *more_rules]) + "\n"


def _arguments_rules(function: Function, name: str, left_out: list[str] | None = None) -> str:
    """Raises: BadRequest"""
    if function.text is not None and function.text.syntax != "text":
        return function.text.rules(name, function.param)
    schema = function.followed_schema(left_out)
    schema["x-guidance"] = {**JSON_LAYOUT, **schema.get("x-guidance", {})}
    return f"{name}: %json {json_text(schema, f'{function.param}.parameters')}"
