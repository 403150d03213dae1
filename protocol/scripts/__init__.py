"""The Lua scripts, one file per transition; every one starts with `common.lua`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha1: str


@cache
def load(name: str) -> Script:
    folder = files(__name__)
    source = "\n".join((folder / f"{part}.lua").read_text() for part in ("common", name))
    # Not for security: Redis names scripts by their SHA-1.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
