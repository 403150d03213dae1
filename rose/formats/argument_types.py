"""Arguments that are written as plain text, as JSON of the types that their function declares.

Of each parameter the types are kept as letters, since they are kept with a job: s(tring),
n(umber), i(nteger), b(oolean), o(bject), a(rray), z for null. A parameter without a schema, or
with one that says no types, may be anything.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

_LETTERS = {
    "string": "s",
    "number": "n",
    "integer": "i",
    "boolean": "b",
    "object": "o",
    "array": "a",
    "null": "z",
}
ANY = "snboaz"
_MAX_DEPTH = 8

Types = Mapping[str, Mapping[str, str]]
"""by function and parameter"""


def types_of(schema: Mapping[str, Any]) -> dict[str, str]:
    """Of the parameters of a function, by name."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: letters_of(one, schema) for name, one in properties.items()}


def letters_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Of what fits a schema within `root`."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ANY
    if isinstance(reference := schema.get("$ref"), str):
        return letters_of(referred(reference, root), root, depth + 1)
    kinds = schema.get("type")
    if kinds is not None:
        names = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
        return _joined([_LETTERS.get(name, "") for name in names if isinstance(name, str)])
    if isinstance(values := schema.get("enum"), list):
        return _joined([_letter_of(value) for value in values])
    if "const" in schema:
        return _letter_of(schema["const"])
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(inner := schema.get(key), list):
            found = [letters_of(one, root, depth + 1) for one in inner]
            if key == "allOf":
                return min(found, key=len, default=ANY)
            return _joined(found)
    return ANY


def _joined(letters: list[str]) -> str:
    return "".join(dict.fromkeys("".join(letters))) or ANY


def referred(reference: str, root: Mapping[str, Any]) -> Any:
    """The schema that a $ref within `root` means; None if there is none."""
    place: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(place, Mapping) or part not in place:
            return None
        place = place[part]
    return place if reference.startswith("#") else None


def _letter_of(value: Any) -> str:
    match value:
        case None:
            return "z"
        case bool():
            return "b"
        case int():
            return "i"
        case float():
            return "n"
        case str():
            return "s"
        case list():
            return "a"
    return "o"


def as_json(text: str, letters: str) -> str:
    """The JSON text of an argument."""
    if letters == "s":
        return quoted(text)
    try:
        value = json.loads(text.strip(), parse_constant=_no_json)
    except (ValueError, RecursionError):
        return _as_word(text, letters)
    letter = _letter_of(value)
    fits = letter in letters or (letter == "i" and "n" in letters)
    if letter == "n" and "i" in letters and math.isfinite(value) and value == int(value):
        return str(int(value))
    if not fits and "s" in letters:
        return quoted(text)
    return text.strip()


def _as_word(text: str, letters: str) -> str:
    """What is no JSON: Python's constants, where they fit, else a text."""
    words = {"True": ("true", "b"), "False": ("false", "b"), "None": ("null", "z")}
    word, letter = words.get(text.strip(), ("", "s"))
    return word if word and letter in letters and letters != ANY else quoted(text)


def _no_json(constant: str) -> Any:
    """NaN and Infinity, which Python's parser takes. Raises: ValueError"""
    raise ValueError(constant)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
