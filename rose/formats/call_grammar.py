"""Grammars of calls, for answers whose text is free until a call begins.

A family writes what stands from one of its triggers on to the end of a call, or of a list of calls:
Lark in llguidance's dialect, with two kinds of rules that a worker writes out, since only it knows
which tags are special tokens of its model:

    tag_0: "<tool_call>"           the special token of this name, or the text
    until_1: "</parameter>" 0 80   any text up to the tag and the tag itself; the text has so many
                                   characters, any number by default
    until_2: "</parameter>" "a|b"  a text that matches this expression, and the tag

Arguments that are JSON follow their schema. Where a family writes each argument as text, a grammar
follows types, enumerations and lengths, and `CallGrammar.left_out` says what it does not.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rose.formats.argument_types import as_json, letters_of, quoted, referred

#: Longer texts are of any length: a grammar counts characters at some cost.
_MOST_COUNTED = 1000
_MAX_DEPTH = 8
#: What an expression of a whole text cannot have within it.
_ANCHORS = re.compile(r"(?:^|[^\\\[])(?:\\\\)*[$^]|\\[bBAzZ]|\(\?[<=!P>]")
_TEXT_LIMITS = ("format", "allOf", "not")
_OBJECT_LIMITS = frozenset(
    ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "minProperties", "maxProperties")
)


class TextRules(NamedTuple):
    """What a text must be."""

    syntax: str
    """regex, or lark in llguidance's dialect"""
    definition: str
    string: Callable[[str], str]
    """the Lark rule of the given name, which is the text as a JSON string, and what it needs"""


class Callee(NamedTuple):
    """A function that may be called."""

    name: str
    schema: Mapping[str, Any]
    """of its arguments, an object, as a grammar follows it"""
    arguments: Callable[[str], str]
    """the Lark rule of the given name, which is its arguments as JSON, and what this rule needs"""
    text: TextRules | None = None
    """what its one argument must be, where a grammar of its own says it"""


class Field(NamedTuple):
    """An argument, or a field of one."""

    schema: Any
    root: Mapping[str, Any]
    """the schema that it is within"""
    where: str
    rules: TextRules | None = None

    @property
    def whole_schema(self) -> Any:
        """With what it may refer to."""
        own = self.schema
        return {**_definitions_of(self.root), **own} if isinstance(own, Mapping) else own


class Value(NamedTuple):
    """What an argument may be, where it is not all JSON."""

    letters: str
    """its types, as `argument_types` has them"""
    literals: tuple[Any, ...] = ()
    text: tuple[int, int | None] | None = None
    """a text of so many characters"""
    pattern: str = ""
    """an expression that the text matches too"""
    others: tuple[Mapping[str, Any], ...] = ()
    """schemas of what is no text"""


@dataclass
class CallGrammar:
    callees: Sequence[Callee]
    parallel: bool = True
    left_out: list[str] = field(default_factory=list)
    """what the grammar does not follow of the schemas"""
    rules: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    """of rules, by what stands behind their colon"""

    @property
    def source(self) -> str:
        return "\n".join(self.rules) + "\n"

    def rule(self, name: str, body: str) -> str:
        self.rules.append(f"{name}: {body}")
        return name

    def _numbered(self, kind: str, body: str) -> str:
        key = f"{kind}: {body}"
        if key not in self._names:
            self._names[key] = self.rule(f"{kind}_{len(self._names)}", body)
        return self._names[key]

    def tag(self, text: str) -> str:
        return self._numbered("tag", quoted(text))

    def until(self, tag: str, length: tuple[int, int | None] = (0, None), pattern: str = "") -> str:
        least, most = length
        counts = "" if length == (0, None) else f" {least} {'' if most is None else most}"
        matching = f" {quoted(pattern)}" if pattern else ""
        return self._numbered("until", quoted(tag) + counts.rstrip() + matching)

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        return self._numbered("json", f"%json {_json(schema)}")

    def term(self, regex: str) -> str:
        return self._numbered("term", f"/{regex}/")

    def call(self, write: Callable[[Callee, str], str]) -> str:
        """One call. `write` is given a function and the rule of its arguments as JSON."""
        for number, callee in enumerate(self.callees):
            self.rule(f"call_{number}", write(callee, f"arguments_{number}"))
        return self.rule("call", " | ".join(f"call_{n}" for n in range(len(self.callees))))

    def arguments(self, callee: Callee, name: str) -> str:
        """The rule `name`: all arguments as one JSON object."""
        self.rules.append(callee.arguments(name))
        return name

    def object(
        self, name_key: str, arguments_key: str, *, before: str = "", after: str = ""
    ) -> str:
        """One call as a JSON object. `before`: what may stand before the name."""

        def write(callee: Callee, arguments: str) -> str:
            self.arguments(callee, arguments)
            name = quoted(f'"{name_key}": {quoted(callee.name)}, "{arguments_key}": ')
            return f'"{{" {before} {name} {arguments} {after} "}}"'

        return self.call(write)

    def alone(self, opening: str, beginnings: Sequence[str], rest: str) -> str:
        """Calls alone in the answer, or a text that does not begin as they do.

        `opening` is an expression of how calls begin, white space aside, and `beginnings` are
        expressions that go on from there, each of a rule `begun_N`. A lexer prefers the longest
        match: so all that a text may share with a call is one terminal, as the text itself.
        """
        made = []
        for number, beginning in enumerate(beginnings):
            self.rule(f"BEGINNING_{number}", rf"/[ \t\r\n]*{beginning}/")
            made.append(f"BEGINNING_{number} begun_{number}")
        self.rule("first", " | ".join(made))
        self.rule("OTHER", rf"/(?s:.+)/ & ~/[ \t\r\n]*{opening}(?s:.*)/")
        return f"(first {rest} | OTHER)?"

    def list(self, call: str, *, space: str = "") -> str:
        """Calls between square brackets: one, or any number."""
        more = f'("," {self.term("[ ]?")} {space} {call} {space})*' if self.parallel else ""
        return f'"[" {space} {call} {space} {more} "]"'

    # Arguments as text

    def parameters(
        self, callee: Callee, write: Callable[[str, Field], str], *, comma: str = ""
    ) -> str:
        """All arguments, in the order of the schema. `write` is given the rule or the text of a
        name, and what stands there. `comma` stands between them."""
        if callee.text is not None:
            (key,) = callee.schema["properties"]
            return write(quoted(key), Field({}, {}, callee.name, callee.text))
        return self.fields(callee.schema, callee.schema, callee.name, write, comma)

    def fields(
        self,
        schema: Mapping[str, Any],
        root: Mapping[str, Any],
        where: str,
        write: Callable[[str, Field], str],
        comma: str,
    ) -> str:
        """The fields of an object whose schema is within `root`."""
        declared = schema.get("properties")
        declared = declared if isinstance(declared, Mapping) else {}
        required = schema.get("required", ())
        self._leave_out(where, *sorted(_OBJECT_LIMITS & schema.keys()))
        if declared and not set(required) <= declared.keys():
            self._leave_out(where, "required")
        made = [
            (write(quoted(key), Field(one, root, f"{where}.{key}")), key in required)
            for key, one in declared.items()
            if one is not False
        ]
        if not declared and schema.get("additionalProperties") is not False:
            more = schema.get("additionalProperties", {})
            name = self.term("[a-zA-Z_][a-zA-Z0-9_]{0,63}")
            one = write(name, Field(more, root, f"{where}.*"))
            return f"({one} ({comma} {one})*)?"
        return self._in_order(made, comma)

    def _in_order(self, fields: Sequence[tuple[str, bool]], comma: str) -> str:
        """Texts of fields, and whether they must be there."""
        if not comma:
            return " ".join(f"({one}){'' if must else '?'}" for one, must in fields)
        first = rest = ""  # what is left where nothing, or something, stands before
        for one, must in reversed(fields):
            behind = self._named(f"({one}) {rest}")
            if must:
                first = behind
            else:
                first = self._named(f"{behind} | {first}" if first else f"({behind})?")
            rest = self._named(f"{comma} ({one}) {rest}" if must else f"({comma} ({one}))? {rest}")
        return first

    def _named(self, body: str) -> str:
        return self._numbered("fields", body)

    def text_value(self, field: Field, close: str) -> str:
        """An argument that is written as text, and the tag behind it."""
        if field.rules is not None and field.rules.syntax == "lark":
            nested = self._numbered("text", f"%lark {{\n{field.rules.definition}\n}}")
            return f"{nested} {self.tag(close)}"
        value = self.value(field)
        if value.text is not None and not value.literals and not value.others:
            return self.until(close, value.text, value.pattern)
        tag = self.tag(close)
        made = [f"{quoted(_as_text(one, value.letters))} {tag}" for one in value.literals]
        made += [f"{self.json(one)} {tag}" for one in value.others]
        if value.text is not None:
            made.append(self.until(close, value.text, value.pattern))
        return f"({' | '.join(made)})"

    def value(self, field: Field) -> Value:
        schema, root, where, rules = field
        if rules is not None:
            return Value("s", text=(0, None), pattern=rules.definition)
        kinds = list(_alternatives(schema, root, 0))
        letters = letters_of(schema, root)
        literals: list[Any] = []
        others: list[Mapping[str, Any]] = []
        texts: list[tuple[int, int | None]] = []
        pattern = ""
        for one in kinds:
            if (values := _literals_of(one)) is not None:
                literals += values
                continue
            types = letters_of(one, root)
            if "s" in types:
                texts.append(_length_of(one))
                pattern = _whole(one.get("pattern", ""))
                limits = [name for name in _TEXT_LIMITS if name in one]
                if "pattern" in one and not pattern:
                    limits.append("pattern")
                self._leave_out(where, *limits)
            else:
                others.append({**_definitions_of(root), **one})
        if len(texts) > 1:
            texts = [(0, None)]
        if texts and others:  # a text may be read as one of the others
            texts = [(0, texts[0][1])]
            if any(one.keys() - {"type", "$defs", "definitions", "x-guidance"} for one in others):
                self._leave_out(where, "anyOf")
        if len(kinds) > 1 and pattern:
            self._leave_out(where, "pattern")
            pattern = ""
        text = texts[0] if texts else None
        return Value(letters, tuple(literals), text, pattern, tuple(others))

    def _leave_out(self, where: str, *keywords: str) -> None:
        self.left_out += [f"{where}: {keyword}" for keyword in keywords]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _alternatives(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """Schemas of which an argument fits one; {} for anything."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        yield {}
        return
    if isinstance(reference := schema.get("$ref"), str):
        yield from _alternatives(referred(reference, root), root, depth + 1)
        return
    for key in ("anyOf", "oneOf"):
        if isinstance(inner := schema.get(key), list) and inner:
            for one in inner:
                yield from _alternatives(one, root, depth + 1)
            return
    types = schema.get("type")
    if isinstance(types, list) and _literals_of(schema) is None:
        for name in types:
            yield {**schema, "type": name}
        return
    yield schema


def _literals_of(schema: Mapping[str, Any]) -> list[Any] | None:
    if isinstance(values := schema.get("enum"), list):
        return values
    return [schema["const"]] if "const" in schema else None


def _length_of(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    least = least if isinstance(least, int) and least <= _MOST_COUNTED else 0
    return least, most if isinstance(most, int) and least <= most <= _MOST_COUNTED else None


def _whole(pattern: Any) -> str:
    """An expression of the whole text of one that a part of it must match; "" where it is not known
    how."""
    if not isinstance(pattern, str) or not pattern:
        return ""
    inner = pattern.removeprefix("^").removesuffix("$")
    if pattern.endswith("\\$") or _ANCHORS.search(inner) or ("|" in inner and inner != pattern):
        return ""
    before = "" if pattern.startswith("^") else "(?s:.*)"
    behind = "" if pattern.endswith("$") else "(?s:.*)"
    return f"{before}(?:{inner}){behind}"


def _definitions_of(root: Mapping[str, Any]) -> dict[str, Any]:
    return {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}


def _as_text(value: Any, letters: str) -> str:
    """As it is read as this value where these are its types."""
    if isinstance(value, str) and as_json(value, letters) == quoted(value):
        return value
    return _json(value)


def names_of(callees: Iterable[Callee]) -> list[str]:
    return [callee.name for callee in callees]
