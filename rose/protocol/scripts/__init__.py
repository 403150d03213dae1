"""The Lua scripts, one file per transition; every one starts with `common.lua`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_PLAIN, _SHARDED = "local PUBLISH = 'PUBLISH'", "local PUBLISH = 'SPUBLISH'"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha1: str

    @property
    def sharded(self) -> Script:
        """As it runs on a cluster: it publishes to the subscribers of one shard."""
        return load(self.name, sharded=True)


@cache
def load(name: str, *, sharded: bool = False) -> Script:
    folder = files(__name__)
    source = "\n".join((folder / f"{part}.lua").read_text() for part in ("common", name))
    if sharded:
        source = source.replace(_PLAIN, _SHARDED, 1)
    # Not for security: Redis names scripts by their SHA-1.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
