"""Records that outlive their writer: a JSON line is one write(2), which SIGKILL cannot undo."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *entry: Any) -> None:
        line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


class Tail:
    """Reads a journal as it grows, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[list[Any]]:
        """The entries since the last call, oldest first."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.split(b"\n") if line]


def read(path: Path) -> list[list[Any]]:
    return Tail(path).new()
