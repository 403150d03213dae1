"""Text and calls of functions in what a model writes, as it comes.

A parser is a pure function of the text: wherever it is cut, the parts are the same once neighbours
of one kind are joined. What is no call, or turns out to be none, is text, every character of it.
Only what wraps a call (names of fields, brackets, tags and the white space around them) is neither,
nor is what there is of a call that was cut off before its arguments.

    named        {"place": "Oslo"}                                      a known function's arguments
    input        *** Begin Patch ...                                    what a named tool is given
    required     {"name": "weather", "arguments": {"place": "Oslo"}}    a call a line
    hermes       Well. <tool_call>{"name": ..., "arguments": ...}</tool_call>     calls within text
    llama3_json  {"name": "weather", "parameters": {"place": "Oslo"}}   calls alone, or text alone
"""

import json
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from rose.formats.call_matching import Head, Match, ObjectEnd, Tail
from rose.formats.parts import Arguments, CallBegun, CallCut, CallEnded, Parser, Part, Text
from rose.formats.reading import WHITE_SPACE, beginning_of, overlap, space_start


class NamedParser:
    """All of the output is the arguments of one function."""

    thinking = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False
        self._value = ObjectEnd()
        self._complete = False

    def feed(self, text: str) -> list[Part]:
        if not text:
            return []
        begun = self._begin()
        self._complete = self._complete or self._value.find(text, 0) >= 0
        return [*begun, Arguments(0, text)]

    def finish(self, *, cut: bool) -> list[Part]:  # noqa: ARG002
        return [*self._begin(), CallEnded(0, self._complete)]

    def _begin(self) -> list[Part]:
        begun, self._begun = self._begun, True
        return [] if begun else [CallBegun(0, self._name)]


class TextInputParser:
    """All of the output is the text that one tool is given."""

    thinking = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def feed(self, text: str) -> list[Part]:
        return [*self._begin(), Arguments(0, text)] if text else []

    def finish(self, *, cut: bool) -> list[Part]:
        return [*self._begin(), CallEnded(0, not cut)]

    def _begin(self) -> list[Part]:
        begun, self._begun = self._begun, True
        return [] if begun else [CallBegun(0, self._name)]


class FirstCallParser:
    """What another parser reads, up to the end of the first call."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._ended = False

    @property
    def thinking(self) -> bool:
        return self._parser.thinking and not self._ended

    def feed(self, text: str) -> list[Part]:
        return [] if self._ended else self._before_end(self._parser.feed(text))

    def finish(self, *, cut: bool) -> list[Part]:
        return [] if self._ended else self._before_end(self._parser.finish(cut=cut))

    def _before_end(self, parts: list[Part]) -> list[Part]:
        for number, part in enumerate(parts):
            if isinstance(part, CallEnded):
                self._ended = True
                return parts[: number + 1]
        return parts


class _State(Enum):
    TEXT = auto()
    """looking for the opening tag"""
    HEAD = auto()
    """before the arguments"""
    ARGUMENTS = auto()
    TAIL = auto()
    """after the arguments, up to the closing tag"""
    WHOLE = auto()
    """a call in another order: read it when it is there as a whole"""
    PLAIN = auto()
    """all that follows is text"""


class CallFormat(NamedTuple):
    """How calls are written: {"name": ..., KEY: {...}}."""

    key: str = "arguments"
    tags: tuple[str, str] | None = None
    """around each call, with text outside; without tags there are calls alone, or text alone"""
    separator: str = ""
    """what may stand between calls beside white space, where there are no tags"""

    @property
    def close(self) -> str:
        return self.tags[1] if self.tags else ""


class CallsParser:
    """Calls in a format, by default {"name": ..., "arguments": {...}}, one a line.

    A function that is not among `names` is not called.
    """

    thinking = False

    def __init__(self, names: frozenset[str], form: CallFormat | None = None) -> None:
        self._names = names
        self._form = form or CallFormat()
        self._open, self._close = self._form.tags or ("", "")
        self._may_begin = beginning_of((self._open,)).search
        self._first_state = _State.TEXT if self._form.tags else _State.HEAD
        self._calls = 0
        self._steps: dict[_State, Callable[[str], Iterator[Part | str]]] = {
            _State.TEXT: self._in_text,
            _State.HEAD: self._in_head,
            _State.ARGUMENTS: self._in_arguments,
            _State.TAIL: self._in_tail,
            _State.WHOLE: self._in_whole,
            _State.PLAIN: self._in_plain,
        }
        self._state = self._first_state
        self._raw: list[str] = []  # what may yet turn out to be text
        self._begin_call()

    def _begin_call(self) -> None:
        self._head = Head(self._form.key, self._form.separator if self._calls else "")
        self._value = ObjectEnd()
        self._tail = Tail(self._close)
        self._recent = ""

    def feed(self, text: str) -> list[Part]:
        if self._state is _State.TEXT and not self._raw and not self._may_begin(text):
            return [Text(text)] if text else []
        parts: list[Part] = []
        rest = text
        while rest:
            step = self._steps[self._state]
            given, rest = rest, ""
            for part in step(given):
                if isinstance(part, str):
                    rest = part
                else:
                    parts.append(part)
        return parts

    def finish(self, *, cut: bool) -> list[Part]:
        state, self._state = self._state, _State.PLAIN
        if state is _State.ARGUMENTS:
            return [CallEnded(self._calls - 1, complete=False)]
        if state is _State.TAIL:
            return []
        raw = self._take_raw()
        if state is _State.WHOLE and (call := self._whole_call(raw)):
            return call
        if cut or (state is _State.HEAD and self._calls and not self._open):
            text = self._before_cut_call(raw, state)
            if text != raw:
                return [Text(text), CallCut()] if text else [CallCut()]
        return [Text(raw)] if raw and not (self._calls and raw.isspace()) else []

    def _before_cut_call(self, raw: str, state: _State) -> str:
        """What is left of it without a call that has not come as far as its arguments."""
        if state in (_State.HEAD, _State.WHOLE):
            return raw if raw.isspace() else ""
        tag = overlap(raw, (self._open,)) if self._open else 0
        # A single character, such as "<", is rather text.
        return raw[:-tag].rstrip(WHITE_SPACE) if tag > 1 else raw

    def _take_raw(self) -> str:
        raw = "".join(self._raw)
        self._raw.clear()
        return raw

    # Each step takes text of one state. A str that it yields is what is left for the next state.

    def _in_text(self, text: str) -> Iterator[Part | str]:
        data = self._take_raw() + text
        tag = data.find(self._open)
        if tag >= 0:
            certain = space_start(data, tag)
            end = tag + len(self._open)
            self._raw = [data[certain:end]]
            self._begin_call()
            self._state = _State.HEAD
            rest = data[end:]
        else:
            certain = space_start(data, len(data) - overlap(data, (self._open,)))
            self._raw = [data[certain:]] if certain < len(data) else []
            rest = ""
        if certain:
            yield Text(data[:certain])
        yield rest

    def _in_head(self, text: str) -> Iterator[Part | str]:
        for position, character in enumerate(text):
            outcome = self._head.take(character)
            if outcome is Match.MORE:
                continue
            if outcome is Match.DONE and self._head.name in self._names:
                self._raw.clear()
                yield CallBegun(self._calls, self._head.name)
                self._calls += 1
                self._state = _State.ARGUMENTS
                yield text[position:]  # the bracket belongs to the arguments
                return
            self._state = _State.WHOLE if self._open else _State.PLAIN
            if not self._open:
                yield Text(self._take_raw() + text)
                return
            before = text[:position]
            self._raw.append(before)
            self._recent = ""
            yield text[position:]
            return
        self._raw.append(text)

    def _in_arguments(self, text: str) -> Iterator[Part | str]:
        index = self._calls - 1
        end = self._value.find(text, 0)
        if end < 0:
            yield Arguments(index, text)
            return
        yield Arguments(index, text[:end])
        yield CallEnded(index, complete=True)
        self._state = _State.TAIL
        yield text[end:]

    def _in_tail(self, text: str) -> Iterator[Part | str]:
        for position, character in enumerate(text):
            outcome = self._tail.take(character)
            if outcome is Match.MORE:
                continue
            if outcome is Match.DONE:
                self._raw.clear()
                self._begin_call()
                self._state = self._first_state
                yield text[position + 1 :]
                return
            self._state = _State.TEXT if self._open else _State.PLAIN
            yield self._take_raw() + text
            return
        self._raw.append(text)

    def _in_whole(self, text: str) -> Iterator[Part | str]:
        known = len(self._recent)
        tag = (self._recent + text).find(self._close)
        if tag < 0:
            self._raw.append(text)
            self._recent = (self._recent + text)[1 - len(self._close) :]
            return
        end = tag + len(self._close) - known
        self._raw.append(text[:end])
        raw = self._take_raw()
        yield from self._whole_call(raw) or [Text(raw)]
        self._begin_call()
        self._state = _State.TEXT
        yield text[end:]

    def _in_plain(self, text: str) -> Iterator[Part | str]:
        yield Text(text)

    def _whole_call(self, raw: str) -> list[Part]:
        """The call that is wrapped in tags, empty if there is none."""
        body = raw.strip(WHITE_SPACE).removeprefix(self._open).removesuffix(self._close)
        try:
            call = json.loads(body)
        except (ValueError, RecursionError):
            return []
        if not isinstance(call, dict):
            return []
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
        if not isinstance(name, str) or name not in self._names:
            return []
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        index = self._calls
        self._calls += 1
        return [CallBegun(index, name), Arguments(index, arguments), CallEnded(index, True)]
