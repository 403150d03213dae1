"""Tags in a grammar: special tokens where the vocabulary has them, else plain text.

Whoever writes a grammar for a job does not know the vocabulary. So two kinds of rules, whose names
say so, are written out here:

    tag_0: "<tool_call>"            the special token of this name, or the text
    until_1: "</parameter>" 0 80    any text up to the tag, and the tag; so many characters of text
    until_2: "</parameter>" "a|b"   a text that matches, and the tag

A tag may also hold several special tokens, and text between them.
"""

import json
import re
from collections.abc import Mapping

_STRING = r'"(?:[^"\\]|\\.)*"'
_RULE = re.compile(
    rf"^(tag|until)_(\d+): ({_STRING})(?: (\d+)(?: (\d+))?)?(?: ({_STRING}))?$", re.MULTILINE
)
_SLASH = re.compile(r"(\\.)|/", re.DOTALL)
_PUNCTUATION = re.compile(r"[\\/.+*?()|\[\]{}^$&~#-]")


def with_tags(source: str, special: Mapping[str, int]) -> str:
    """`special`: the ids of special tokens by their names."""

    def written(match: re.Match[str]) -> str:
        kind, number, literal, least, most, pattern = match.groups()
        pieces = _pieces(json.loads(literal), special)
        if kind == "tag":
            return f"tag_{number}: " + " ".join(_either(piece, special) for piece in pieces)
        text = f"(?s:.{{{least or 0},{most or ''}}})" if least or most else "(?s:.*)"
        regex = json.loads(pattern) if pattern else ""
        return _until(number, pieces, text, regex, special)

    return _RULE.sub(written, source)


def _pieces(tag: str, special: Mapping[str, int]) -> list[str]:
    """The names of special tokens in it, and what stands between them."""
    names = sorted((name for name in special if name in tag), key=len, reverse=True)
    if not names:
        return [tag]
    pattern = re.compile(f"({'|'.join(map(re.escape, names))})")
    return [piece for piece in pattern.split(tag) if piece]


def _either(piece: str, special: Mapping[str, int]) -> str:
    literal = json.dumps(piece, ensure_ascii=False)
    return f"({literal} | <[{special[piece]}]>)" if piece in special else literal


def _until(
    number: str, pieces: list[str], text: str, pattern: str, special: Mapping[str, int]
) -> str:
    """`text`: an expression of how long it is; `pattern`: one that it matches too, if not empty."""
    first, *more = pieces
    rest = " ".join(_either(piece, special) for piece in more)
    close = _literal_regex(first)
    matching = _SLASH.sub(lambda match: match[1] or "\\/", pattern).replace("\n", "\\n")
    plain, alone = f"/{text}{close}/", f"/{text}/"
    if pattern:
        plain += f" & /(?:{matching}){close}/"
        alone += f" & /{matching}/"
    # The shortest match may hold the tag: what it matches, or with the tag's white space left out.
    bare = _literal_regex(first.strip())
    if text != "(?s:.*)" or pattern or first != first.strip():
        plain += f" & ~/(?s:.*){bare}(?s:.+)/"
    if first not in special:
        return f"until_{number}: until_{number}_text {rest}\nuntil_{number}_text[lazy]: {plain}"
    token = f"<[{special[first]}]>"
    optional = "?" if _may_be_empty(text, pattern) else ""
    return (
        f"until_{number}: (until_{number}_text | UNTIL_{number}{optional} {token}) {rest}\n"
        f"until_{number}_text[lazy]: {plain}\n"
        f"UNTIL_{number}: {alone}"
    )


def _may_be_empty(text: str, pattern: str) -> bool:
    try:
        return bool(re.fullmatch(text, "") and re.fullmatch(pattern, ""))
    except (re.error, OverflowError, RecursionError):  # Rust's dialect has more
        return False


def _literal_regex(text: str) -> str:
    """An expression of Lark's that matches this text."""
    return _PUNCTUATION.sub(lambda match: "\\" + match[0], text).replace("\n", "\\n")
