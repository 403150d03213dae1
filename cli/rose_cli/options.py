"""The options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line.")]
RedisUrl = Annotated[
    str | None, typer.Option("--redis-url", help="Where Redis is. [env: ROSE_REDIS_URL]")
]
Queue = Annotated[str | None, typer.Option("--queue", help="Which queue. [env: ROSE_QUEUE]")]
Model = Annotated[str | None, typer.Option(help="Folder or hub name; else built in.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...")]


def given(**values: Any) -> dict[str, Any]:
    """The options that were set; the rest is left to the environment and the defaults."""
    return {name: value for name, value in values.items() if value is not None}
