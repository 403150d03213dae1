"""The Lua scripts: one file for each transition. `common.lua` is put in front of each.

A script that gives memory back, or brings work to an end, begins with `#!lua flags=allow-oom`: it
runs although Redis has reached `maxmemory`. Without that the jobs that fill Redis could never leave
it. A script that only enqueues has no such line, and Redis refuses it then.
"""

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
        """The script for a cluster, which publishes to the subscribers of one shard."""
        return load(self.name, sharded=True)


@cache
def load(name: str, *, sharded: bool = False) -> Script:
    folder = files(__name__)
    common, source = ((folder / f"{part}.lua").read_text() for part in ("common", name))
    flags = ""
    if source.startswith("#!"):  # Redis looks for it in the first line only
        flags, newline, source = source.partition("\n")
        flags += newline
    source = f"{flags}{common}\n{source}"
    if sharded:
        source = source.replace(_PLAIN, _SHARDED, 1)
    # Redis names scripts by their SHA-1; this is not for security.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
