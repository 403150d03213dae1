"""Llama 4 and others: calls as Python writes them, alone in the answer.

[weather(place="Oslo", days=3), now()]
"""

import ast
import json
import re
from typing import Any

from rose.formats.argument_types import quoted
from rose.formats.call_grammar import Callee, CallGrammar, Field, names_of
from rose.formats.call_reading import CallReader
from rose.formats.parts import CallCut
from rose.formats.reading import Reading

_OF_VALUE = re.compile(r"""[\\"'()\[\]{},]""")
_OPEN, _CLOSE = "([{", ")]}"
_START = "<|python_start|>"


class PythonicReader(CallReader):
    openings = ("[",)
    dropped = ("<|python_start|>", "<|python_end|>")

    def read(self) -> Reading[None]:
        self.raw = []
        yield from self.skip_space()
        if (yield from self.took("<|python_start|>")):
            self.raw = []
        yield from self.skip_space()
        if (yield from self.took("[")):
            yield from self._calls()
        raw, self.raw = "".join(self.raw or ()), None
        if self.ended and self.cut and raw.lstrip().startswith("["):
            self.parts.append(CallCut())
        elif raw:
            self.say(raw)
        while (yield from self.until(self.dropped, self.say)):
            pass

    def _calls(self) -> Reading[None]:
        while True:
            yield from self.skip_space()
            if self.calls and (yield from self.took("]", ",")) != ",":
                return
            yield from self.skip_space()
            name = yield from self.word("(")
            if name is None or name not in self.names:
                return
            self.take(1)
            self.begin(name)
            complete = yield from self._arguments()
            self.end(complete=complete)
            if not complete:
                return

    def _arguments(self) -> Reading[bool]:
        number = 0
        while True:
            yield from self.skip_space()
            if (yield from self.took(")")):
                self.argue("{}" if number == 0 else "}")
                return True
            if number and not (yield from self.took(",")):
                return False
            yield from self.skip_space()
            key = yield from self.word("=", ")")
            if key is None:
                return False
            if not (yield from self.took("=")):  # a comma may end the arguments
                continue
            self.argue(("{" if number == 0 else ", ") + quoted(key.strip()) + ": ")
            value = yield from self._value()
            if value is None:
                return False
            self.argue(_as_json(value))
            number += 1

    def _value(self) -> Reading[str | None]:
        """The text of a value, up to the comma or bracket behind it."""
        pieces: list[str] = []
        depth, quote = 0, ""
        while (yield from self.some()):
            match = _OF_VALUE.search(self.buffer)
            if match is None:
                pieces.append(self.take(len(self.buffer)))
                continue
            character = match[0]
            if not quote and depth == 0 and character in ",)":
                pieces.append(self.take(match.start()))
                return "".join(pieces)
            pieces.append(self.take(match.end()))
            if character == "\\":
                if (yield from self.some()):
                    pieces.append(self.take(1))
            elif quote:
                quote = "" if character == quote else quote
            elif character in "\"'":
                quote = character
            elif character in _OPEN:
                depth += 1
            elif character in _CLOSE:
                depth -= 1
        return None


def _as_json(text: str) -> str:
    """Of a value of JSON's or of Python's; all else is a text."""
    text = text.strip()
    try:
        json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        pass
    else:
        return text
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return quoted(text)


def _no_json(constant: str) -> Any:
    """Raises: ValueError"""
    raise ValueError(constant)


def grammar(g: CallGrammar) -> tuple[str, ...]:
    """Values are JSON, and True, False, None and 'texts' beside it."""
    space = g.term("[ ]?")

    def argument(name: str, field: Field) -> str:
        if field.rules is not None:
            g.rules.append(field.rules.string(f"input_{len(g.rules)}"))
            return f'{name} "=" input_{len(g.rules) - 1}'
        made = [g.json(field.whole_schema)]
        match field.schema:
            case {"type": "string", **more} if not more.keys() - {"description", "title"}:
                made.append(g.term(r"'([^'\\\x00-\x1F]|\\[\\'nt])*'"))
            case {"type": "boolean", **more} if not more.keys() & {"enum", "const"}:
                made.append('"True" | "False"')
            case {"type": "null"}:
                made.append('"None"')
        return f'{name} "=" ({" | ".join(made)})'

    def write(callee: Callee, arguments: str) -> str:
        number = arguments.rpartition("_")[2]
        fields = g.parameters(callee, argument, comma=f'"," {space}')
        begun = g.rule(f"begun_{number}", f'{fields} ")"')
        return f"{quoted(callee.name + '(')} {begun}"

    call, tag = g.call(write), g.tag(_START)
    names = names_of(g.callees)
    more = f'("," {space} {call})* "]"' if g.parallel else '"]"'
    start = r"(<\|python_start\|>[ \t\r\n]*)?\["
    beginnings = [rf"{start}{name}\(" for name in names]
    alone = g.alone(rf"{start}[ \t\r\n]*({'|'.join(names)})\(", beginnings, more)
    g.rule("start", f'{alone} | {tag} "[" {call} {more}')
    return tuple(f"^{before}[{name}(" for before in ("", _START) for name in names)
