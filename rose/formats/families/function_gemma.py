"""FunctionGemma: a notation of its own, with texts between <escape> tags.

<start_function_call>call:weather{place:<escape>Oslo<escape>,days:3}<end_function_call>
"""

import json

from rose.formats.argument_types import quoted
from rose.formats.call_reading import CallReader
from rose.formats.reading import Reading

_ESCAPE = "<escape>"
_MAX_DEPTH = 32


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
