"""What can be told of the schemas and patterns in a grammar before anything is compiled."""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from rose.errors import InvalidParameter
from rose.sampling import Grammar

#: A number's remainder is followed digit by digit, with a state for each remainder: about 4 us and
#: 500 bytes each. The sum counts, over all schemas of a grammar.
MAX_REMAINDERS = 20_000
#: Multiples between bounds are listed instead, as long as a grammar has no more of them.
MAX_LISTED = 1_000
# Beyond, arithmetic itself costs.
_MAX_DIGITS = 40
#: A rule's name, or a regular expression with its flags; strings and comments, which may look so.
_LARK_PARTS = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|^(?P<rule>\w+)(?:\.\d+)?\s*:|(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)',
    re.MULTILINE,
)
_COUNTED_TERMINAL = re.compile(
    r"^([A-Z][A-Z0-9_]*)(?:\.\d+)?\s*:.*(?:\{\s*\d|~\s*\d)", re.MULTILINE
)
_START = re.compile(r"^start(?=\s*:)", re.MULTILINE)
_JSON_IN_LARK = re.compile(r"(?:^(\w+)\s*:\s*)?%json\s*(?=[{\[])", re.MULTILINE)
_UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: (\[.*?\])")
#: Keywords whose values are data.
_DATA = frozenset({"const", "enum", "default", "examples"})
#: Keywords whose values have schemas by names that anybody chooses.
_NAMES = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
#: Beside these a list of all values says the same.
_LISTABLE = frozenset(
    {"type", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"title", "description", "default", "examples"}
)


#: Characters of a pattern whose counts are multiplied out, as `(a{10}b){20}` has 220. Beyond, many
#: have steps that cost too much when it is too late to refuse them.
MAX_PATTERN = 10_000
_BEYOND = 10**12
#: From so many on it is tried whether a pattern can be counted.
_MANY = 50
_PATTERN_PARTS = re.compile(
    r"\\(?:[pPx]\{[^}]{0,40}\}|.)|\{(\d{1,9})(?:,(\d{0,9}))?\}|.", re.DOTALL
)


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
            f"a grammar may have {MAX_REMAINDERS}: leave it out, use smaller numbers, or give "
            f"bounds with at most {MAX_LISTED} multiples between them",
            param=path,
        )
    return found


def list_multiples(grammar: Grammar) -> Grammar:
    """The same grammar, in which few multiples between bounds are listed: that costs far less than
    following remainders and bounds at once."""
    if "multipleOf" not in grammar.source:
        return grammar
    source, left = grammar.source, MAX_LISTED
    for start, end, path, schema in reversed([*_schemas(grammar)]):
        listed = False
        for _, inner in _within(path, schema):
            values = _between_bounds(inner, left)
            if values:
                left, listed = left - len(values), True
                inner.clear()
                inner["enum"] = [*values]
        if listed:
            source = f"{source[:start]}{json.dumps(schema, default=float)}{source[end:]}"
    return grammar._replace(source=source)


def _between_bounds(schema: dict[str, Any], most: int) -> range:
    """All values of a schema of multiples; empty if that is not what it is, or there are more."""
    step = schema.get("multipleOf")
    bounds = {name: schema[name] for name in schema if name.lower().endswith("imum")}
    plain = schema.get("type") in ("integer", "number") and schema.keys() <= _LISTABLE
    if not (plain and type(step) is int and step > 0 and all(map(_is_short, bounds.values()))):
        return range(0)
    first, last = [], []
    for name, bound in bounds.items():
        place = Fraction(bound) / step
        match name:
            case "minimum":
                first.append(math.ceil(place))
            case "exclusiveMinimum":
                first.append(math.floor(place) + 1)
            case "maximum":
                last.append(math.floor(place))
            case _:
                last.append(math.ceil(place) - 1)
    if not first or not last or not 0 <= min(last) - max(first) < most:
        return range(0)
    return range(max(first) * step, min(last) * step + 1, step)


def _is_short(number: Any) -> bool:
    if type(number) not in (int, Decimal):
        return False
    _, digits, exponent = Decimal(number).as_tuple()
    return isinstance(exponent, int) and len(digits) + abs(exponent) <= _MAX_DIGITS


def check_patterns(grammar: Grammar) -> None:
    """Raises InvalidParameter: a pattern counts more than can be followed."""
    for path, pattern, _ in _patterns(grammar):
        if (size := _multiplied_out(pattern)) > MAX_PATTERN:
            raise InvalidParameter(
                f"{path}: the pattern has {size} characters when its counts are multiplied out, "
                f"and may have {MAX_PATTERN}: use * or smaller counts",
                param=path,
            )


def patterns_that_count(grammar: Grammar) -> Iterator[tuple[str, Grammar]]:
    """Grammars of each that counts up to many, alone, with its path."""
    found = {
        alone: path
        for path, pattern, alone in _patterns(grammar)
        if _multiplied_out(pattern) > _MANY
    }
    if grammar.kind == "grammar":
        rules = _START.sub("start_as_written", grammar.source)
        for name in dict.fromkeys(_COUNTED_TERMINAL.findall(grammar.source)):
            found[Grammar("grammar", f"{rules}\nstart: {name}")] = f"grammar.{name}"
    for alone, path in found.items():
        yield path, alone


def _patterns(grammar: Grammar) -> Iterator[tuple[str, str, Grammar]]:
    """The path of each, its text, and a grammar of nothing else."""
    if grammar.kind == "regex":
        yield "regex", grammar.source, Grammar("regex", grammar.source)
    if grammar.kind == "grammar":
        rule = "start"
        for part in _LARK_PARTS.finditer(grammar.source):
            rule = part["rule"] or rule
            if regex := part["regex"]:
                yield f"grammar.{rule}", regex, Grammar("grammar", f"start: {regex}")
    for path, schema in _subschemas(grammar):
        names = schema.get("patternProperties")
        patterns = [*names] if isinstance(names, dict) else []
        for pattern in (*patterns, schema.get("pattern")):
            if isinstance(pattern, str):
                alone = json.dumps({"type": "string", "pattern": pattern})
                where = f"{path}.pattern{'Properties' if pattern in patterns else ''}"
                yield where, pattern, Grammar("json_schema", alone)


def _multiplied_out(pattern: str) -> int:
    """Its size where each count is written out, up to a bound. What a count belongs to is a
    character, a class or a group. Whether it is a pattern at all is for llguidance to say."""
    sizes, last, in_class = [0], 0, False
    for part in _PATTERN_PARTS.finditer(pattern):
        match part[0][0]:
            case "]" if in_class:
                in_class, last = False, 1
            case _ if in_class:
                continue
            case "[":
                in_class = True
                continue
            case "(":
                sizes.append(0)
                continue
            case ")" if len(sizes) > 1:
                last = sizes.pop()
            case "{" if part[1]:
                if (times := max(int(part[1]), int(part[2] or 0))) > 1:
                    added = min(last * (times - 1), _BEYOND)
                    sizes[-1], last = min(sizes[-1] + added, _BEYOND), min(last + added, _BEYOND)
                continue
            case "*" | "+" | "?" | "|" | "^" | "$":
                continue
            case _:
                last = 1
        sizes[-1] = min(sizes[-1] + last, _BEYOND)
    return min(sum(sizes), _BEYOND)


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
    """At most how many remainders llguidance follows, as measured. It knows some of those as the
    same that differ by factors of ten: of 86400 half are left, of 200000 one of three hundred."""
    step = step.normalize()
    if not _is_short(step):
        return int(10**_MAX_DIGITS)
    _, digits, exponent = step.as_tuple()
    count, tens = int("".join(map(str, digits))), int(exponent)
    if tens <= 0:
        return count - tens
    return min(int(count * 10**tens), (count + 10) ** 2 * (tens + 1))


def _subschemas(grammar: Grammar) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object that may be a schema, with its path."""
    for _, _, path, schema in _schemas(grammar):
        yield from _within(path, schema)


def _within(path: str, schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """No recursion, for a schema may be deep."""
    waiting = [(path, schema, False)]
    while waiting:
        path, value, has_names = waiting.pop()
        if isinstance(value, dict):
            if not has_names:
                yield path, value
            waiting += [
                (f"{path}.{key}", item, not has_names and key in _NAMES)
                for key, item in value.items()
                if has_names or key not in _DATA
            ]
        elif isinstance(value, list):
            waiting += [(f"{path}.{index}", item, False) for index, item in enumerate(value)]


def _schemas(grammar: Grammar) -> Iterator[tuple[int, int, str, Any]]:
    """Where each begins and ends in the source, and its path."""
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
            schema, end = decoder.raw_decode(grammar.source, start)
        except (ValueError, RecursionError):
            continue  # llguidance will say what is wrong
        yield start, end, path, schema
