"""What pydantic finds wrong, in one line for people."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

# A report travels in error events: its length must not be the sender's to choose.
_MAX_LINES = 8
_MAX_NAME = 64


def describe(
    error: ValidationError,
    *,
    whole: str,
    inner: str | None = None,
    possible: Mapping[str, str] | None = None,
    known: Collection[str] = (),
) -> str:
    """One line for a validation report, for people and for error events.

    `whole` is what the fields are fields of. Those of its field `inner` are known by their own
    names. `possible` says, by name, what a field must be. `known` are the names of all fields.
    """
    lines = dict.fromkeys(
        _line(item, whole, inner, possible or {}, known)
        for item in error.errors(include_url=False, include_context=False)
    )
    told = list(lines)[:_MAX_LINES]
    left = len(lines) - len(told)
    return "; ".join(told) + (f"; and {left} more" if left else "")


def lone_surrogate(text: str) -> str | None:
    """What is wrong with text that cannot be written as UTF-8; None if it can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"has half of a surrogate pair at character {error.start}, as text of bytes that were "
            "no UTF-8 does"
        )
    return None


def did_you_mean(name: str, known: Collection[str]) -> str:
    """To be added to what is said of an unknown name; empty where none is like it."""
    alike = get_close_matches(name[:_MAX_NAME], known, n=1)
    return f", did you mean {alike[0]}?" if alike else ""


def _line(
    item: ErrorDetails,
    whole: str,
    inner: str | None,
    possible: Mapping[str, str],
    known: Collection[str],
) -> str:
    path, value = item["loc"], item["input"]
    message = item["msg"].removeprefix("Value error, ")
    path = path[1:] if path[:1] == (inner,) and len(path) > 1 else path
    where = ".".join(str(part)[:_MAX_NAME] for part in path) or whole
    if item["type"] == "extra_forbidden":
        return f"{where}: no such parameter" + did_you_mean(where, known)
    if path and path[0] in possible:
        # Once for all that is wrong in it: each branch of a union reports an error.
        where, message = str(path[0]), f"must be {possible[str(path[0])]}"
    # A value inside of a union or an array may be a token of a prompt.
    is_shown = len(path) == 1 and isinstance(value, int | float | bool | None)
    return f"{where}={value!r}: {message}" if is_shown else f"{where}: {message}"
