"""What the commands of `rose` share: options, and how they talk."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rose_errors import InvalidParameter, RoseError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line.")]
RedisUrl = Annotated[
    str | None, typer.Option("--redis-url", help="Where Redis is. [env: ROSE_REDIS_URL]")
]
Queue = Annotated[str | None, typer.Option("--queue", help="Which queue. [env: ROSE_QUEUE]")]

out = Console(highlight=False)


def given(**values: Any) -> dict[str, Any]:
    """What was said on the command line; the rest is left to the environment and defaults."""
    return {name: value for name, value in values.items() if value is not None}


def print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def complain(error: RoseError) -> None:
    """One line on stderr."""
    if "--json" in sys.argv:
        sys.stderr.write(json.dumps({"error": error.code, "message": str(error)}) + "\n")
    else:
        Console(stderr=True, highlight=False).print(f"rose: {error}", markup=False, soft_wrap=True)


def bias_of(word: str) -> tuple[int, float]:
    """The token id and the bias in ID=BIAS. Raises: InvalidParameter"""
    token_id, _, bias = word.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise InvalidParameter(f"--logit-bias {word!r}: must be ID=BIAS, such as 42=-3.5") from None


def text_of(word: str | None) -> str | None:
    """What an option says, or the file that it names with @. Raises: InvalidParameter"""
    if word is None or not word.startswith("@"):
        return word
    try:
        return Path(word[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{word}: cannot be read: {error}") from None
