"""The pieces of a call in a model's output, matched letter by letter as they come."""

import re
from enum import Enum, auto

from rose.formats.reading import WHITE_SPACE


class Match(Enum):
    MORE = auto()
    DONE = auto()
    FAILED = auto()


class Head:
    """{"name": "...", KEY: { with any white space between; done at the last bracket. The separator
    may stand before it."""

    def __init__(self, key: str, separator: str) -> None:
        self.name = ""
        self._pieces = ("{", '"name"', ":", None, ",", f'"{key}"', ":", "{")
        self._separator = separator
        self._piece = 0
        self._offset = 0

    def take(self, character: str) -> Match:
        if self._offset == 0 and character in WHITE_SPACE:
            return Match.MORE
        piece = self._pieces[self._piece]
        if self._piece == self._offset == 0 and character == self._separator:
            self._separator = ""
            return Match.MORE
        if piece is None:
            return self._take_name(character)
        if character != piece[self._offset]:
            return Match.FAILED
        self._offset += 1
        if self._offset == len(piece):
            self._piece, self._offset = self._piece + 1, 0
        return Match.DONE if self._piece == len(self._pieces) else Match.MORE

    def _take_name(self, character: str) -> Match:
        if self._offset == 0:
            self._offset = 1
            return Match.MORE if character == '"' else Match.FAILED
        if character == '"':
            self._piece, self._offset = self._piece + 1, 0
        elif character == "\\" or len(self.name) >= 64:
            return Match.FAILED
        else:
            self.name += character
        return Match.MORE


class Tail:
    """The call's last bracket and the closing tag, with any white space between. With tags the
    bracket may be missing: models forget it."""

    def __init__(self, close: str) -> None:
        self._close = close
        self._bracket = False
        self._offset = 0

    def take(self, character: str) -> Match:
        if self._offset == 0 and character in WHITE_SPACE:
            return Match.MORE
        if not self._bracket and self._offset == 0 and character == "}":
            self._bracket = True
            return Match.MORE if self._close else Match.DONE
        if not self._close or character != self._close[self._offset]:
            return Match.FAILED
        self._offset += 1
        return Match.DONE if self._offset == len(self._close) else Match.MORE


_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class ObjectEnd:
    """Where the JSON object that begins the text ends, looked for piece by piece."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str, position: int) -> int:
        """The index after its last bracket, -1 if that has not come yet."""
        while position < len(text):
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            pattern = _INSIDE if self._in_string else _OUTSIDE
            match = pattern.search(text, position)
            if match is None:
                return -1
            position = match.end()
            character = match.group()
            if character == '"':
                self._in_string = not self._in_string
            elif character == "\\":
                self._escaped = True
            else:
                self._depth += 1 if character in "{[" else -1
                if self._depth <= 0:
                    return position
        return -1
