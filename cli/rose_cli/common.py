"""What the commands of `rose` share: options, and how they talk."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from rose.errors import RoseError

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
