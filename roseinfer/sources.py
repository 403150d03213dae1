"""The source of a model: a local folder or a name on the hub."""

from __future__ import annotations

from pathlib import Path

from rose.errors import ModelNotFound


def resolve(source: str) -> str:
    """The folder or hub name to load. What can only be a folder is not looked up on the hub.

    Raises ModelNotFound if it can only be a folder, and there is none.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path)
    if path.is_absolute() or source.startswith(".") or source.count("/") > 1:
        raise ModelNotFound(f"no folder {source!r}: give a model's folder or its name on the hub")
    return source
