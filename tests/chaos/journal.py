"""Records that outlive their writer: a JSON line is one write(2), which SIGKILL cannot undo."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Entry = tuple[str, list[Any]]


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *entry: Any) -> None:
        line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


class Tail:
    """Reads the journals whose names match as they grow, whole lines only."""

    def __init__(
        self, folder: Path, pattern: str, offsets: Mapping[str, int] | None = None
    ) -> None:
        """`offsets`: from where on in each file; otherwise from the beginning."""
        self._folder, self._pattern = folder, pattern
        self.offsets = dict(offsets or {})
        """by the file's name: how many bytes have been read"""

    def new(self) -> list[Entry]:
        """The entries since the last call, oldest first in each journal, and its name."""
        entries: list[Entry] = []
        for path in sorted(self._folder.glob(self._pattern)):
            read, offset = _read(path, self.offsets.get(path.name, 0))
            self.offsets[path.name] = offset
            entries += read
        return entries


def read(folder: Path, pattern: str) -> Iterator[Entry]:
    """One after another: all of a long run would not fit into memory."""
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield path.stem, json.loads(line)


def read_file(path: Path) -> list[Entry]:
    return _read(path, 0)[0] if path.exists() else []


def read_end(path: Path, size: int) -> list[Entry]:
    """The last entries, as many as fit into so many bytes: what it costs does not grow."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - size)
        file.seek(start)
        if start:
            start += len(file.readline())  # what is left of one that does not fit
    return _read(path, start)[0]


def _read(path: Path, offset: int) -> tuple[list[Entry], int]:
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    entries = [(path.stem, json.loads(line)) for line in whole.splitlines()]
    return entries, offset + len(whole)
