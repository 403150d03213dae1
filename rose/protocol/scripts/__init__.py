"""The Lua scripts: one file for each transition, behind what it uses of `common*.lua`.

Only what it uses, because Redis makes every function of a script anew at every call.

A script that gives memory back, or brings work to an end, begins with `#!lua flags=allow-oom`: it
runs although Redis has reached `maxmemory`. Without that the jobs that fill Redis could never leave
it. A script that only enqueues has no such line, and Redis refuses it then.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_PLAIN, _SHARDED = "local PUBLISH = 'PUBLISH'", "local PUBLISH = 'SPUBLISH'"

_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_DECLARATION = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha1: str

    @property
    def sharded(self) -> Script:
        """The script for a cluster, which publishes to the subscribers of one shard."""
        return load(self.name, sharded=True)


#: What several scripts use, by subject. Each of them may use those before it.
_COMMON = (
    *("common", "common_takes", "common_tenants", "common_parking", "common_turns"),
    "common_cancellation",
)


@cache
def load(name: str, *, sharded: bool = False) -> Script:
    source = with_common((files(__name__) / f"{name}.lua").read_text())
    if sharded:
        source = source.replace(_PLAIN, _SHARDED, 1)
    return Script(name, source, sha1_of(source))


def with_common(source: str) -> str:
    """A script behind what it uses of `common*.lua`."""
    flags = ""
    if source.startswith("#!"):  # Redis looks for it in the first line only
        flags, newline, source = source.partition("\n")
        flags += newline
    return f"{flags}{_used(source)}{source}"


def sha1_of(source: str) -> str:
    """By which Redis names a script; this is not for security."""
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


@cache
def _declarations() -> dict[str, str]:
    """Of `common*.lua`, by name."""
    common = "".join((files(__name__) / f"{name}.lua").read_text() for name in _COMMON)
    common = _COMMENT.sub("", common)
    starts = [(match[1], match.start()) for match in _DECLARATION.finditer(common)]
    ends = [start for _, start in starts[1:]] + [len(common)]
    return {name: common[start:end] for (name, start), end in zip(starts, ends, strict=True)}


def _used(source: str) -> str:
    """The common declarations that `source` names, and those that these name in turn."""
    parts = _declarations()
    used: set[str] = set()
    unread = [_COMMENT.sub("", source)]
    while unread:
        named = parts.keys() & set(_WORD.findall(unread.pop()))
        unread += [parts[name] for name in named - used]
        used |= named
    return "".join(part for name, part in parts.items() if name in used)
