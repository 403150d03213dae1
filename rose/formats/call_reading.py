"""What parsers of calls have in common: the text between calls, JSON in pieces, typed arguments."""

import json
from typing import Any, ClassVar

from rose.formats.argument_types import ANY, Types, as_json, quoted
from rose.formats.call_matching import ObjectEnd
from rose.formats.parts import Arguments, CallBegun, CallCut, CallEnded, Text
from rose.formats.reading import WHITE_SPACE, Give, Reader, Reading, pattern_of

_NO_TYPES: Types = {}
_SCALAR_ENDS = ",}]" + WHITE_SPACE
#: Names of fields and of functions.
_MAX_NAME = 256


class CallReader(Reader):
    """Text with calls in it. A function that is not among `names` is not called: what is no call
    is text, every character of it."""

    openings: ClassVar[tuple[str, ...]]
    """tags with which a call, or a list of calls, begins"""
    dropped: ClassVar[tuple[str, ...]] = ()
    """tags that say nothing, wherever they stand"""
    are_special: ClassVar[bool] = False
    """Its tags are no text, even where they do not make a call."""

    def __init__(self, names: frozenset[str], types: Types = _NO_TYPES) -> None:
        self.names = names
        self.types = types
        self.calls = 0
        super().__init__()

    def read(self) -> Reading[None]:
        tags = (*self.openings, *self.dropped)
        while tag := (yield from self.until(tags, self.say)):
            if tag in self.dropped:
                continue
            self.raw = [tag]
            yield from self._call(tag)
        if self.cut_in_tag:
            self.parts.append(CallCut())

    def _call(self, tag: str) -> Reading[None]:
        before = self.calls
        if (yield from self.call(tag)) or self.raw is None:
            self.raw = None
            if self.ended:  # what is left is the beginning of a tag
                self.buffer = ""
            return
        if self.ended:
            self.take(len(self.buffer))
        raw, self.raw = "".join(self.raw), None
        if self.ended and self.cut:
            self.parts.append(CallCut())
            return
        if self.are_special:
            raw = pattern_of((*self.openings, *self.dropped)).sub("", raw)
        if raw and not (before and raw.isspace()):
            self.parts.append(Text(raw))

    def call(self, tag: str) -> Reading[bool]:
        """Reads what `tag` opens. False for what is no call, as long as none has begun."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        if not (self.ended and self.calls and text.isspace()):
            self.parts.append(Text(text))

    def begin(self, name: str) -> None:
        self.raw = None
        self.parts.append(CallBegun(self.calls, name))
        self.calls += 1

    def argue(self, text: str) -> None:
        if text:
            self.parts.append(Arguments(self.calls - 1, text))

    def end(self, *, complete: bool) -> None:
        self.parts.append(CallEnded(self.calls - 1, complete))

    # JSON

    def json_value(self, give: Give) -> Reading[bool]:
        """Give a JSON value away as it comes. False where the output ends before it does, or there
        is none."""
        if not (yield from self.some()):
            return False
        match self.buffer[0]:
            case "{" | "[":
                ends = ObjectEnd()
                while (size := ends.find(self.buffer, 0)) < 0:
                    give(self.take(len(self.buffer)))
                    if not (yield from self.some()):
                        return False
                give(self.take(size))
                return True
            case '"':
                return (yield from self._json_string(give))
        return (yield from self._json_scalar(give))

    def _json_string(self, give: Give) -> Reading[bool]:
        give(self.take(1))
        while (yield from self.some()):
            match = pattern_of(('"', "\\")).search(self.buffer)
            if match is None:
                give(self.take(len(self.buffer)))
            elif match[0] == '"':
                give(self.take(match.end()))
                return True
            else:
                give(self.take(match.start()))
                while len(self.buffer) < 2 and not self.ended:
                    yield
                give(self.take(2))
        return False

    def _json_scalar(self, give: Give) -> Reading[bool]:
        found = yield from self.word(*_SCALAR_ENDS, limit=_MAX_NAME)
        if found is None and self.ended:
            found = self.take(len(self.buffer))
        try:
            json.loads(found or "")
        except ValueError:
            return False
        give(found or "")
        return True

    def json_text(self) -> Reading[Any]:
        """The value of a JSON text; None where it is no text."""
        pieces: list[str] = []
        yield from self.json_value(pieces.append)
        try:
            value = json.loads("".join(pieces))
        except ValueError:
            return None
        return value if isinstance(value, str) else None

    def json_call(self, name_key: str, arguments_keys: tuple[str, ...]) -> Reading[bool]:
        """A call as a JSON object: its name and its arguments, in any order. False for what is no
        such call, as long as none has begun."""
        if not (yield from self.took("{")):
            return False
        name: str | None = None
        arguments: list[str] = []
        begun = False
        while True:
            yield from self.skip_space()
            tag = yield from self.took("}", ",")
            if tag == "}":
                break
            yield from self.skip_space()
            key = yield from self.json_text()
            yield from self.skip_space()
            if key is None or not (yield from self.took(":")):
                return self._broken(begun=begun)
            yield from self.skip_space()
            if key == name_key and name is None:
                name = yield from self.json_text()
                if name not in self.names:
                    return self._broken(begun=begun)
            elif key in arguments_keys and name is not None and not begun:
                begun = True
                if not (yield from self._arguments_of(name)):
                    return self._broken(begun=True)
            elif not (
                yield from self.json_value(arguments.append if key in arguments_keys else _drop)
            ):
                return self._broken(begun=begun)
        if name is None:
            return False
        if not begun:
            self.begin(name)
            self.argue(_unquoted("".join(arguments)) or "{}")
        self.end(complete=True)
        return True

    def _arguments_of(self, name: str) -> Reading[bool]:
        """The value of `arguments`: an object, or a text that is one."""
        self.begin(name)
        if (yield from self.some()) and self.buffer[0] == '"':
            self.argue((yield from self.json_text()) or "{}")
            return True
        return (yield from self.json_value(self.argue))

    def _broken(self, *, begun: bool) -> bool:
        if begun:
            self.end(complete=False)
        return begun

    def json_calls(self, name_key: str, arguments_keys: tuple[str, ...]) -> Reading[bool]:
        """A call, or a list of calls."""
        if (yield from self.at("{")):
            return (yield from self.json_call(name_key, arguments_keys))
        if not (yield from self.took("[")):
            return False
        before = self.calls
        while True:
            yield from self.skip_space()
            tag = yield from self.at("]", ",", "{")
            if tag == "{":
                if not (yield from self.json_call(name_key, arguments_keys)):
                    return self.calls > before
                if self.ended and not self.buffer:
                    return True
            elif tag:
                self.take(1)
            if tag not in ("{", ","):
                return self.calls > before

    def json_arguments(self, name: str) -> Reading[bool]:
        """All the arguments of a call whose name is known, as one JSON object."""
        if name not in self.names or not (yield from self.at("{")):
            return False
        self.begin(name)
        complete = yield from self.json_value(self.argue)
        self.end(complete=complete)
        return True

    # Arguments as text

    def argument(
        self, name: str, key: str, close: str, *, number: int, space: str
    ) -> Reading[bool]:
        """An argument up to its closing tag. False where the output ends before it."""
        letters = self.types.get(name, {}).get(key, ANY)
        self.argue(("{" if number == 0 else ", ") + quoted(key) + ": ")
        if space:
            yield from self.took(space)
        if letters == "s":
            self.argue('"')
            if not (yield from self.until((close,), self._argue_text, space=space)):
                return False
            self.argue('"')
            return True
        pieces: list[str] = []
        if not (yield from self.until((close,), pieces.append, space=space)):
            return False
        self.argue(as_json("".join(pieces), letters))
        return True

    def _argue_text(self, text: str) -> None:
        self.argue(quoted(text)[1:-1])

    def end_arguments(self, number: int, *, complete: bool = True) -> None:
        """`number`: how many there were."""
        if complete:
            self.argue("{}" if number == 0 else "}")
        self.end(complete=complete)


def _drop(_: str) -> None:
    pass


def _unquoted(text: str) -> str:
    """Arguments that are written as a text, as objects."""
    if not text.startswith('"'):
        return text
    value: str = json.loads(text)
    return value
