"""The text that a custom tool is given, read from the JSON that the model writes:
{"input": "..."}.

What comes is the text without its escapes, piece by piece. JSON of another shape is the text
itself, as it was written. It depends on the JSON alone, and not on where it is cut.
"""

import json
from enum import Enum, auto

_HEAD = ("{", '"input"', ":", '"')
_SPACE = " \t\r\n"
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_HEX = frozenset("0123456789abcdefABCDEF")
_REPLACEMENT = "\ufffd"


def arguments_of(text: str) -> str:
    """The JSON that gives a tool this text."""
    return json.dumps({"input": text}, ensure_ascii=False)


class _State(Enum):
    HEAD = auto()
    STRING = auto()
    TAIL = auto()
    OTHER = auto()


class TextInputReader:
    def __init__(self) -> None:
        self._state = _State.HEAD
        self._head = ""
        self._piece = self._offset = 0
        self._escape = ""
        """an escape that has not ended, or half a pair of them"""

    def feed(self, text: str) -> str:
        """What is certain after more of the JSON."""
        made: list[str] = []
        for position, character in enumerate(text):
            match self._state:
                case _State.HEAD:
                    made.append(self._in_head(character))
                case _State.STRING:
                    made.append(self._in_string(character))
                case _State.TAIL:
                    break
                case _State.OTHER:
                    made.append(text[position:])
                    break
        return "".join(made)

    def finish(self) -> str:
        """What is left when the JSON has ended."""
        head, self._head = self._head, ""
        half, self._escape = self._escape, ""
        if self._state is _State.HEAD:
            return head
        return _REPLACEMENT if len(half) >= 6 else ""

    def _in_head(self, character: str) -> str:
        self._head += character
        piece = _HEAD[self._piece]
        if self._offset == 0 and character in _SPACE:
            return ""
        if character != piece[self._offset]:
            self._state = _State.OTHER
            head, self._head = self._head, ""
            return head
        self._offset += 1
        if self._offset == len(piece):
            self._piece, self._offset = self._piece + 1, 0
        if self._piece == len(_HEAD):
            self._state = _State.STRING
        return ""

    def _in_string(self, character: str) -> str:
        if self._escape and not (len(self._escape) == 6 and character != "\\"):
            self._escape += character
            return self._unescaped()
        before, self._escape = _REPLACEMENT if self._escape else "", ""
        if character == "\\":
            self._escape = character
        elif character == '"':
            self._state = _State.TAIL
        else:
            return before + character
        return before

    def _unescaped(self) -> str:
        """Of the escape so far, once it is whole. Half a pair of surrogates waits for the other."""
        first, second = self._escape[:6], self._escape[6:]
        last = second or first
        if len(last) == 2 and last[1] != "u":
            self._escape = ""
            return (_REPLACEMENT if second else "") + _SHORT.get(last[1], last[1])
        if len(last) < 6:
            return ""
        if not second and 0xD800 <= _code(first) < 0xDC00:
            return ""
        self._escape = ""
        if not second:
            return _character(_code(first))
        low = _code(second)
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((_code(first) - 0xD800) << 10) + low - 0xDC00)
        if 0xD800 <= low < 0xDC00:
            self._escape = second
            return _REPLACEMENT
        return _REPLACEMENT + _character(low)


def _code(escape: str) -> int:
    """-1 for what is no escape."""
    digits = escape.removeprefix("\\u")
    return int(digits, 16) if set(digits) <= _HEX else -1


def _character(code: int) -> str:
    return _REPLACEMENT if code < 0 or 0xD800 <= code < 0xE000 else chr(code)
