"""Grammars of a text, made to hold for the text as it stands within a JSON string.

A model writes what a custom tool is given as JSON: {"input": "..."}. The tool's own grammar, a
regular expression or Lark in llguidance's dialect, is about the text without its escapes. So each
character that a string must escape is exchanged for its escape, in literals and in regular
expressions; what stands around them stays as it is, under names of its own.
"""

import json
import re
from collections.abc import Iterator

#: What must be escaped, and how it is written. Everything else stands for itself.
_ESCAPES = {chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)}
_ESCAPES |= {'"': '\\"', "\\": "\\\\"}
_SPECIAL = "".join(_ESCAPES)
#: Those without a short escape, and an expression of their escapes.
_UNNAMED = frozenset(character for character, escape in _ESCAPES.items() if escape[1] == "u")
_UNNAMED_ESCAPES = r"\\u00(?:0[0-7bef]|1[0-9a-f])"
#: A class of the others.
_ORDINARY = r'[^"\\\x00-\x1F]'

#: Terminals of Lark's library.
_COMMON = {
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[a-fA-F0-9]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"([0-9]+\.[0-9]*)|(\.[0-9]+)",
    "FLOAT": r"[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+|[0-9]+\.[0-9]*|\.[0-9]+",
    "NUMBER": r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(\\.|[^"\\\n])*"',
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "LETTER": r"[a-zA-Z]",
    "WORD": r"[a-zA-Z]+",
    "CNAME": r"[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
}

_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<string>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\\n])+/[imslux]*)
    | (?P<import>%import[^\n]*)
    | (?P<directive>%[a-z]+)
    | (?P<name>[_a-zA-Z][_a-zA-Z0-9]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_IMPORT = re.compile(
    r"%import\s+common(?:\.(?P<one>\w+)(?:\s*->\s*(?P<alias>\w+))?|\s*\((?P<several>[\w\s,]+)\))\s*"
)
_ESCAPED = re.compile(r"\\(?:x(..)|u(....)|U(.{8})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}


class NotFollowed(ValueError):
    """The grammar has something that this module does not know."""


def regex_in_json(source: str, flags: str = "") -> str:
    """The expression for the text within a JSON string, without its quotes.

    Raises: NotFollowed
    """
    made = "".join(_units(source, dotall="s" in flags))
    if "i" in flags and made != source:
        raise NotFollowed("the flag i where the expression has what JSON must escape")
    return made


def lark_in_json(source: str, prefix: str) -> str:
    """Definitions whose names begin with `prefix`, of which PREFIXSTART is the text within a JSON
    string. All are terminals: llguidance takes the longest terminal without looking back, and with
    escapes the end of one may begin as the next does.

    Raises: NotFollowed
    """
    made: list[str] = []
    imports: list[str] = []
    uses: dict[str, set[str]] = {}
    tokens = [token for token in _TOKEN.finditer(source) if token.lastgroup != "comment"]
    used: set[str] = set()
    for number, token in enumerate(tokens):
        text = token.group()
        match token.lastgroup:
            case "string":
                made.append(_literal(text, in_range=_in_range(tokens, number)))
            case "regex":
                body, _, flags = text[1:].rpartition("/")
                made.append(f"/{regex_in_json(body, flags)}/{flags}")
            case "import":
                imports += _imported(text, prefix)
            case "directive":
                raise NotFollowed(f"{text} is not followed in the text of a tool")
            case "name":
                name = _renamed(text, prefix)
                if _is_defined(tokens, number):
                    used = uses.setdefault(name, set())
                else:
                    used.add(name)
                made.append(name)
            case _ if text not in "?!" or not _before_definition(tokens, number):
                made.append(text)
    _check_recursion(uses)
    return _ALIAS.sub("", "".join(made)).strip("\n") + "\n" + "".join(imports)


_ALIAS = re.compile(r"->\s*\w+")


def _renamed(name: str, prefix: str) -> str:
    """Terminals have capital letters, rules have none: both may have the same otherwise."""
    rule = "" if name.lstrip("_")[:1].isupper() else "R_"
    return f"{prefix}{rule}{name}".upper()


def _is_defined(tokens: list[re.Match[str]], number: int) -> bool:
    """Whether the name stands at the beginning of a line, before a colon."""
    before = number - 1
    while before >= 0 and tokens[before].group() in ("?", "!", " ", "\t"):
        before -= 1
    rest = "".join(token.group() for token in tokens[number + 1 : number + 8])
    return (before < 0 or tokens[before].group() == "\n") and bool(
        re.match(r"(?:\.-?\d+)?\s*:", rest)
    )


def _before_definition(tokens: list[re.Match[str]], number: int) -> bool:
    return number + 1 < len(tokens) and _is_defined(tokens, number + 1)


def _check_recursion(uses: dict[str, set[str]]) -> None:
    """Raises: NotFollowed"""
    left = {name: used & uses.keys() for name, used in uses.items()}
    while free := [name for name, used in left.items() if not used]:
        for name in free:
            del left[name]
        for used in left.values():
            used.difference_update(free)
    if left:
        raise NotFollowed("rules that hold themselves")


def _imported(text: str, prefix: str) -> Iterator[str]:
    """Raises: NotFollowed"""
    match = _IMPORT.fullmatch(text)
    if match is None:
        raise NotFollowed(f"{text[:80]!r}: only terminals of common can be imported")
    pairs = [(match["one"], match["alias"] or match["one"])]
    if match["several"]:
        names = [name.strip() for name in match["several"].split(",")]
        pairs = [(name, name) for name in names if name]
    for name, alias in pairs:
        if name not in _COMMON:
            raise NotFollowed(f"%import common.{name[:40]}: there is no such terminal")
        yield f"{_renamed(alias, prefix)}: /{regex_in_json(_COMMON[name])}/\n"


def _in_range(tokens: list[re.Match[str]], number: int) -> bool:
    """Whether a literal is an end of "a".."z"."""
    around = "".join(token.group() for token in tokens[max(0, number - 2) : number + 3])
    return '"..' in around


def _literal(text: str, *, in_range: bool) -> str:
    """Raises: NotFollowed"""
    folds = text.endswith("i")
    body = text.removesuffix("i")[1:-1]
    plain = _ESCAPED.sub(_unescaped, body)
    escaped = "".join(_ESCAPES.get(character, character) for character in plain)
    if escaped != plain and (folds or in_range):
        raise NotFollowed(f"{text[:80]}: folds or spans what JSON must escape")
    return json.dumps(escaped, ensure_ascii=False) + ("i" if folds else "")


def _unescaped(match: re.Match[str]) -> str:
    for digits in match.groups()[:3]:
        if digits is not None:
            return _character(digits)
    letter = match[4]
    return _CONTROL.get(letter, letter)


def _character(digits: str) -> str:
    """Raises: NotFollowed"""
    try:
        return chr(int(digits, 16))
    except (ValueError, OverflowError):
        raise NotFollowed(f"\\{digits[:16]} names no character") from None


# Of regular expressions: each literal, class or dot is a unit, all else stays


def _units(source: str, *, dotall: bool) -> Iterator[str]:
    position = 0
    while position < len(source):
        character = source[position]
        if character == "[":
            end = _class_end(source, position)
            yield _set(source[position:end])
            position = end
        elif character == "\\":
            match = _regex_escape(source, position)
            yield _set(match)
            position += len(match)
        elif source.startswith("(?", position):
            if not source.startswith("(?:", position):
                raise NotFollowed("groups other than (...) and (?:...)")
            yield "(?:"
            position += 3
        elif character in "(){}|*+?^$":
            end = source.find("}", position) + 1 if character == "{" else position + 1
            yield source[position : end or position + 1]
            position = end or position + 1
        else:
            yield _dot(dotall=dotall) if character == "." else _set(character)
            position += 1


_LONG_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CLASSES = "dDwWsS"
#: Escapes of punctuation and of control characters; others mean something else in each dialect.
_KNOWN_ESCAPES = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[dDwWsSntrfv]|[^\w\s])")


def _regex_escape(source: str, position: int) -> str:
    match = _LONG_ESCAPE.match(source, position)
    if match is None or not _KNOWN_ESCAPES.fullmatch(match.group()):
        raise NotFollowed(f"{source[position : position + 2]!r} in an expression")
    return match.group()


def _class_end(source: str, start: int) -> int:
    position = start + 1
    if source.startswith("^", position):
        position += 1
    if source.startswith("]", position):
        position += 1
    while position < len(source) and source[position] != "]":
        if source[position] == "[" or source.startswith("&&", position):
            raise NotFollowed("a class within a class")
        position += len(_regex_escape(source, position)) if source[position] == "\\" else 1
    if position >= len(source):
        raise NotFollowed("a class without its end")
    return position + 1


def _dot(*, dotall: bool) -> str:
    return _united(_ORDINARY, [one for one in _SPECIAL if dotall or one != "\n"])


def _set(unit: str) -> str:
    """A class, an escape or a character, as an expression of the escaped text."""
    try:
        pattern = re.compile(unit)
    except re.error as error:
        raise NotFollowed(f"{unit[:40]!r}: {error}") from None
    special = [character for character in _SPECIAL if pattern.fullmatch(character)]
    if not special:
        return unit
    if unit[0] not in "[\\" or (unit[0] == "\\" and unit[1] not in _CLASSES):
        return _united("", special)  # one character
    nested = unit if unit[0] == "[" else f"[{unit}]"
    return _united(f"[{nested}&&{_ORDINARY}]" if _has_ordinary(pattern) else "", special)


def _has_ordinary(pattern: re.Pattern[str]) -> bool:
    """Some character of those that a class may have beside the special ones."""
    return any(pattern.fullmatch(chr(code)) for code in range(0x20, 0x3000) if code not in (34, 92))


def _united(ordinary: str, special: list[str]) -> str:
    """One or the other: a class, and the escapes of these characters."""
    alternatives = [ordinary] if ordinary else []
    if _UNNAMED.issubset(special):
        alternatives.append(_UNNAMED_ESCAPES)
        special = [character for character in special if character not in _UNNAMED]
    alternatives += (re.escape(_ESCAPES[character]) for character in special)
    return f"(?:{'|'.join(alternatives)})"
