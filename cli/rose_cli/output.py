"""How every command prints lines, JSON and errors. Tables are in `rose_cli.tables`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rose.errors import RoseError


def print_text(text: str, end: str = "\n") -> None:
    """Flushes: whoever reads a pipe sees each piece as it comes."""
    print(text, end=end, flush=True)


def print_json(value: Mapping[str, Any]) -> None:
    print_text(json.dumps(value, ensure_ascii=False))


def print_result(facts: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """The facts for a program, or the text for a person."""
    if as_json:
        print_json(facts)
    else:
        print_text(text)


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
