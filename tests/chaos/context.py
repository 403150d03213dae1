"""What every process of a run is told: who it is, and where the run's files are."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from rose_producer import AsyncClient
from tests.chaos.journal import Journal

Sabotage = Literal["renewal", "fencing", "log"]

#: Where a producer finds out how far it may go: a number in a file.
LIMIT = "limit"
#: Jobs that the harness itself adds, past the client library.
RAW_SUBMISSIONS = "submitted-raw.jsonl"


class Context(BaseModel):
    model_config = ConfigDict(frozen=True)

    seed: int
    jobs: int
    folder: Path
    redis_url: str
    queue: str
    index: int
    """which of the `of` processes of its kind this one is"""
    of: int
    incarnation: int = 0
    redis_timeout_s: float
    sabotage: Sabotage | None = None
    worker: dict[str, Any] = {}
    """a worker's settings"""

    def client(self, **settings: Any) -> AsyncClient:
        return AsyncClient(
            redis_url=self.redis_url,
            queue=self.queue,
            redis_timeout_s=self.redis_timeout_s,
            **settings,
        )

    def journal(self, name: str) -> Journal:
        return Journal(self.folder / f"{name}.jsonl")


def run_process(main: Callable[[Context], Coroutine[Any, Any, None]]) -> None:
    """A process of the harness, which ends when the harness does."""
    _die_with_parent()
    asyncio.run(main(Context.model_validate_json(sys.argv[1])))


def _die_with_parent() -> None:
    """The end of the harness closes our stdin."""

    def watch() -> None:
        # Not through sys.stdin: its lock, held by a daemon thread, aborts the interpreter's end.
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
