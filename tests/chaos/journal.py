"""Records that outlive their writer: a JSON line is one write(2), which SIGKILL cannot undo."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *entry: Any) -> None:
        line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


class Tail:
    """Reads the journals whose names match as they grow, whole lines only."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._offsets: Counter[Path] = Counter()

    def new(self) -> list[tuple[str, list[Any]]]:
        """The entries since the last call, oldest first in each journal, and its name."""
        entries = []
        for path in sorted(self._folder.glob(self._pattern)):
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] += len(whole)
            entries += [(path.stem, json.loads(line)) for line in whole.splitlines()]
        return entries


def read(folder: Path, pattern: str) -> list[tuple[str, list[Any]]]:
    return Tail(folder, pattern).new()
