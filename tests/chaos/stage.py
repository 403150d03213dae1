"""What every process of a run is told: who it is, and where the run's files are."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tests.chaos.journal import Journal

Sabotage = Literal["renewal", "fencing", "log"]

#: Where a producer finds out how far it may go: a number in a file.
LIMIT = "limit"
#: Jobs that the harness itself adds, past the client library.
RAW_SUBMISSIONS = "submitted-raw.jsonl"


class Stage(BaseModel):
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

    @classmethod
    def from_argv(cls) -> Stage:
        return cls.model_validate_json(sys.argv[1])

    def journal(self, name: str) -> Journal:
        return Journal(self.folder / f"{name}.jsonl")


def die_with_parent() -> None:
    """End this process when the harness does: its end closes our stdin."""

    def watch() -> None:
        # Not through sys.stdin: its lock, held by a daemon thread, aborts the interpreter's end.
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
