"""FunctionGemma: a notation of its own, with texts between <escape> tags.

<start_function_call>call:weather{place:<escape>Oslo<escape>,days:3}<end_function_call>
"""

import json
from collections.abc import Mapping
from typing import Any

from rose.formats.argument_types import quoted
from rose.formats.call_grammar import Callee, CallGrammar, Field
from rose.formats.call_reading import CallReader
from rose.formats.reading import Reading

_ESCAPE = "<escape>"
_MAX_DEPTH = 32
#: Of values that a grammar follows.
_FOLLOWED_DEPTH = 6


class FunctionGemmaReader(CallReader):
    openings = ("<start_function_call>",)
    dropped = ("<end_function_call>",)
    are_special = True

    def call(self, tag: str) -> Reading[bool]:  # noqa: ARG002
        yield from self.skip_space()
        if not (yield from self.took("call:")):
            return False
        name = yield from self.word("{")
        if name is None or (name := name.strip()) not in self.names:
            return False
        self.begin(name)
        self.end(complete=(yield from self._value(0)))
        return True

    def _value(self, depth: int) -> Reading[bool]:
        """False where the output ends before it does, or it is none."""
        if depth > _MAX_DEPTH:
            return False
        yield from self.skip_space()
        match (yield from self.took("{", "[", _ESCAPE)):
            case "{":
                return (yield from self._items("}", depth))
            case "[":
                return (yield from self._items("]", depth))
            case "<escape>":
                self.argue('"')
                closed = yield from self.until((_ESCAPE,), self._argue_text, space="")
                self.argue('"' if closed else "")
                return bool(closed)
        word = yield from self.word(",", "}", "]")
        if word is None:
            return False
        self.argue(_scalar(word.strip()))
        return True

    def _items(self, close: str, depth: int) -> Reading[bool]:
        """What stands between brackets: values, with keys between curly ones."""
        self.argue("{" if close == "}" else "[")
        number = 0
        while True:
            yield from self.skip_space()
            if (yield from self.took(close)):
                self.argue(close)
                return True
            if number and not (yield from self.took(",")):
                return False
            self.argue(", " if number else "")
            if close == "}":
                key = yield from self._key()
                if key is None:
                    return False
                self.argue(quoted(key) + ": ")
            if not (yield from self._value(depth + 1)):
                return False
            number += 1

    def _key(self) -> Reading[str | None]:
        yield from self.skip_space()
        if (yield from self.took(_ESCAPE)):
            key = yield from self.word(_ESCAPE)
            self.take(len(_ESCAPE))
            yield from self.skip_space()
            return key if (yield from self.took(":")) else None
        key = yield from self.word(":")
        self.take(1)
        return None if key is None else key.strip()


def _scalar(word: str) -> str:
    try:
        json.loads(word, parse_constant=_no_json)
    except ValueError:
        return quoted(word)
    return word


def _no_json(constant: str) -> float:
    """Raises: ValueError"""
    raise ValueError(constant)


def grammar(g: CallGrammar) -> tuple[str, ...]:
    """Objects and lists are followed up to a depth; below it they may hold anything."""
    notation = _Notation(g)

    def write(callee: Callee, _: str) -> str:
        fields = g.parameters(callee, notation.field, comma='","')
        return f'{quoted("call:" + callee.name)} "{{" {fields} "}}"'

    opening, close = g.tag("<start_function_call>"), g.tag("<end_function_call>")
    g.rule("start", f"{opening} {g.call(write)} {close}")
    return ("<start_function_call>",)


class _Notation:
    def __init__(self, g: CallGrammar) -> None:
        self._g = g
        self._escape = g.tag(_ESCAPE)
        number, key = g.json({"type": "number"}), g.term("[a-zA-Z_][a-zA-Z0-9_]{0,63}")
        g.rule("field", f'{key} ":" any')
        g.rule(
            "any",
            f'{self._text((0, None))} | {number} | "true" | "false" | "null"'
            ' | "[" (any ("," any)*)? "]" | "{" (field ("," field)*)? "}"',
        )

    def _text(self, length: tuple[int, int | None], pattern: str = "") -> str:
        return f"{self._escape} {self._g.until(_ESCAPE, length, pattern)}"

    def field(self, name: str, field: Field) -> str:
        if name.startswith('"') and not name[1:-1].replace("_", "").isalnum():
            name = f"{self._escape} {name} {self._escape}"
        return f'{name} ":" {self._value(field, 0)}'

    def _value(self, field: Field, depth: int) -> str:
        if depth > _FOLLOWED_DEPTH:
            return "any"
        if field.rules is not None:
            return f"{self._escape} {self._g.text_value(field, _ESCAPE)}"
        value = self._g.value(field)
        if len(value.letters) > len("snboz") and value.text == (0, None):
            return "any"
        made = [self._literal(one) for one in value.literals]
        if value.text is not None:
            made.append(self._text(value.text, value.pattern))
        made += [self._other(Field(one, field.root, field.where), depth) for one in value.others]
        return f"({' | '.join(made)})"

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._escape} {quoted(value)} {self._escape}"
        return quoted(json.dumps(value)) if not isinstance(value, dict | list) else "any"

    def _other(self, field: Field, depth: int) -> str:
        """Of one type, which is not that of a text."""
        schema: Mapping[str, Any] = field.schema
        match schema.get("type"):
            case "object":
                fields = self._g.fields(
                    schema,
                    field.root,
                    field.where,
                    lambda name, one: f'{name} ":" {self._value(one, depth + 1)}',
                    '","',
                )
                return f'"{{" {fields} "}}"'
            case "array":
                items = Field(schema.get("items", {}), field.root, f"{field.where}[]")
                return self._list(schema, self._value(items, depth + 1))
        return self._g.json(field.whole_schema)

    def _list(self, schema: Mapping[str, Any], item: str) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[" "]"'
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'
