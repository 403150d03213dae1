"""How every command prints lines, JSON and errors. Tables are in `rose_cli.tables`."""

import io
import json
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TextIO

from rose.errors import InvalidParameter, RoseError


def accept_all_characters(file: TextIO | None) -> None:
    """What the encoding of `file` lacks, as in the C locale, becomes `?` and no traceback."""
    if isinstance(file, io.TextIOWrapper) and not _is_unicode(file):
        file.reconfigure(errors="replace")


def _is_unicode(file: TextIO | None) -> bool:
    return (getattr(file, "encoding", None) or "utf-8").lower().startswith("utf")


def read_stdin() -> str:
    """Raises: InvalidParameter"""
    if sys.stdin is None:
        raise InvalidParameter("stdin is closed: no prompt can be read there")
    try:
        text = sys.stdin.read()
        text.encode()  # a locale may let undecodable bytes pass as surrogates
    except UnicodeError as error:
        raise InvalidParameter(f"stdin is not text: {error}") from None
    return text


def print_text(text: str, end: str = "\n", *, file: TextIO | None = None) -> None:
    """Flushes: whoever reads a pipe sees each piece as it comes. `file`: stdout if not given."""
    print(text, end=end, file=file, flush=True)


def print_json(value: Mapping[str, Any], *, file: TextIO | None = None) -> None:
    ascii_only = not _is_unicode(file or sys.stdout)
    print_text(json.dumps(value, ensure_ascii=ascii_only), file=file)


def print_result(
    facts: Mapping[str, Any], text: str, *, as_json: bool, file: TextIO | None = None
) -> None:
    """The facts for a program, or the text for a person."""
    if as_json:
        print_json(facts, file=file)
    else:
        print_text(text, file=file)


def print_error(error: RoseError) -> None:
    """One line on stderr."""
    if "--json" in sys.argv:
        line = json.dumps({"error": error.code, "message": str(error)})
    else:
        line = f"rose: {error}"
    print(line, file=sys.stderr)


def printable(text: str) -> str:
    """`text` without control characters: a sender chose them, and they would reach a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def local_time(at_ms: int) -> str:
    try:
        at = datetime.fromtimestamp(at_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"  # somebody else wrote it
    return at.isoformat(sep=" ", timespec="seconds")


def seconds_since(then_ms: int) -> float:
    return max(0.0, time.time() - then_ms / 1000)


def age(since_ms: int) -> str:
    """In the largest unit of which there are two at least: 90 s, 5 min, 3 h, 2 d."""
    seconds = seconds_since(since_ms)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
