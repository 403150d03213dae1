"""What can be told of the JSON schemas in a grammar before anything is compiled."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from rose.errors import InvalidParameter
from rose.sampling import Grammar

#: A number's remainder is followed digit by digit, with a state for each remainder: about 4 us and
#: 500 bytes each. The sum counts, over all schemas of a grammar.
MAX_REMAINDERS = 20_000
# Beyond, arithmetic itself costs.
_MAX_DIGITS = 40
_JSON_IN_LARK = re.compile(r"(?:^(\w+)\s*:\s*)?%json\s*(?=[{\[])", re.MULTILINE)
_UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: (\[.*?\])")
#: Keywords whose values are data.
_DATA = frozenset({"const", "enum", "default", "examples"})


class Multiple(NamedTuple):
    path: str
    schema: dict[str, Any]
    remainders: int


def check_multiples(grammar: Grammar) -> list[Multiple]:
    """All `multipleOf` of a grammar, the most expensive first.

    Raises InvalidParameter: together they are more than can be followed.
    """
    found = sorted(_multiples(grammar), key=lambda multiple: -multiple.remainders)
    total = sum(multiple.remainders for multiple in found)
    if total > MAX_REMAINDERS:
        path, schema, remainders = found[0]
        beside = f", and with {len(found) - 1} others {total}" if len(found) > 1 else ""
        raise InvalidParameter(
            f"{path}: a multiple of {schema['multipleOf']} needs {remainders} states{beside}; "
            f"a grammar may have {MAX_REMAINDERS}: leave it out or use smaller numbers",
            param=path,
        )
    return found


def path_of_unknown(grammar: Grammar, error: str) -> str | None:
    """Where the keyword is that llguidance's error says it does not know."""
    match = _UNKNOWN_KEYWORDS.search(error)
    if match is None:
        return None
    names = set(json.loads(match[1]))
    for path, schema in _subschemas(grammar):
        for name in schema:
            if name in names:
                return f"{path}.{name}"
    return None


def _multiples(grammar: Grammar) -> Iterator[Multiple]:
    for path, schema in _subschemas(grammar):
        step = schema.get("multipleOf")
        if isinstance(step, int | Decimal) and not isinstance(step, bool) and step > 0:
            yield Multiple(f"{path}.multipleOf", schema, _remainders(Decimal(step)))


def _remainders(step: Decimal) -> int:
    """How many remainders differ for the digits that follow: a factor of ten needs one state."""
    _, digits, exponent = step.normalize().as_tuple()
    if not isinstance(exponent, int) or len(digits) + abs(exponent) > _MAX_DIGITS:
        return int(10**_MAX_DIGITS)
    count = int("".join(map(str, digits)))
    powers = abs(exponent)
    for prime in (2, 5):
        while count % prime == 0:
            count //= prime
            powers += 1
    return count + powers


def _subschemas(grammar: Grammar) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object that may be a schema, with its path; no recursion, for a schema may be deep."""
    waiting: list[tuple[str, Any]] = [*_schemas(grammar)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            yield path, value
            waiting += [(f"{path}.{key}", item) for key, item in value.items() if key not in _DATA]
        elif isinstance(value, list):
            waiting += [(f"{path}.{index}", item) for index, item in enumerate(value)]


def _schemas(grammar: Grammar) -> Iterator[tuple[str, Any]]:
    if grammar.kind == "regex":
        return
    decoder = json.JSONDecoder(parse_float=Decimal)
    starts = [("json_schema", 0)]
    if grammar.kind == "grammar":
        starts = [
            (f"grammar.{match[1] or '%json'}", match.end())
            for match in _JSON_IN_LARK.finditer(grammar.source)
        ]
    for path, start in starts:
        try:
            schema, _ = decoder.raw_decode(grammar.source, start)
        except (ValueError, RecursionError):
            continue  # llguidance will say what is wrong
        yield path, schema
