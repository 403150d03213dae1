"""The Lua scripts and their calls: a file a transition, behind what it uses of `common*.lua`.

Only what it uses, because Redis makes every function of a script anew at every call. A line
`--uses NAME, NAME` in a function declares it there, so that it is made only if the function runs.

A script that gives memory back, or brings work to an end, begins with `#!lua flags=allow-oom`: it
runs although Redis has reached `maxmemory`. Without that the jobs that fill Redis could never leave
it. A script that only enqueues has no such line, and Redis refuses it then.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rose.errors import MalformedMessage

_PUBLISH, _DATABASE = "local PUBLISH = '{}'", "local DATABASE = '{}'"

_USES = re.compile(r"^(?P<indent> *)--uses (?P<names>.+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_DECLARATION = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha1: str
    publishes: bool = True

    def sent_to(self, database: int, *, sharded: bool) -> Script:
        """The script for a database of a server, whose subscribers it publishes to; `sharded`: for
        a cluster, where it publishes to those of one shard."""
        return load(self.name, database, sharded=sharded) if self.publishes else self


#: What several scripts use, by subject. Each of them may use those before it.
_COMMON = (
    *("common", "common_takes", "common_tenants", "common_accounts", "common_parking"),
    *("common_turns", "common_cancellation", "common_placement"),
)


@cache
def load(name: str, database: int = 0, *, sharded: bool = False) -> Script:
    source = with_common((files(__name__) / f"{name}.lua").read_text())
    source = source.replace(_DATABASE.format(0), _DATABASE.format(database), 1)
    if sharded:
        source = source.replace(_PUBLISH.format("PUBLISH"), _PUBLISH.format("SPUBLISH"), 1)
    return Script(name, source, sha1_of(source))


def with_common(source: str) -> str:
    """A script behind what it uses of `common*.lua`."""
    flags = ""
    if source.startswith("#!"):  # Redis looks for it in the first line only
        flags, newline, source = source.partition("\n")
        flags += newline
    in_one_place = {name for match in _USES.finditer(source) for name in match["names"].split(", ")}
    everywhere = _needed(_named(_COMMENT.sub("", source)) - in_one_place)
    text, outer = [_text(everywhere)], [("", everywhere)]
    end = 0
    for match in _USES.finditer(source):
        text.append(source[end : match.start()])
        # Left are the places in whose block this one is.
        while not _goes_on(text[-1], outer[-1][0]) or len(match["indent"]) <= len(outer[-1][0]) > 0:
            outer.pop()
        names = _needed(match["names"].split(", ")).difference(*(names for _, names in outer))
        outer.append((match["indent"], names))
        text.append(_text(names))
        end = match.end()
    return "".join([flags, *text, source[end:]])


def _goes_on(source: str, indent: str) -> bool:
    """Whether a block of this indent does not end in these lines."""
    return all(line.startswith(indent) for line in source.splitlines() if line)


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


def _named(source: str) -> set[str]:
    return _declarations().keys() & set(_WORD.findall(source))


def _needed(names: Iterable[str]) -> set[str]:
    """These common declarations, and those that they name in turn."""
    needed: set[str] = set()
    unread = set(names)
    while unread:
        name = unread.pop()
        needed.add(name)
        unread |= _named(_declarations()[name]) - needed
    return needed


def _text(names: Set[str]) -> str:
    return "".join(part for name, part in _declarations().items() if name in names)


Arg = str | bytes | int


@dataclass(frozen=True, slots=True)
class Call:
    """One EVALSHA."""

    script: Script
    keys: Sequence[str | bytes]
    args: Sequence[Arg]


def now_ms() -> int:
    """Unix milliseconds, the unit of every time in the protocol."""
    return int(time.time() * 1000)


def malformed(script: str, error: Exception) -> MalformedMessage:
    return MalformedMessage(f"the reply to {script} is not what it should be: {error}")


def ms_until(deadline_ms: int | None, now: int) -> int | str:
    """Redis' clock need not be this host's: it is told how much time is left."""
    return "-" if deadline_ms is None else max(0, deadline_ms - now)


def value_or(value: int | None, absent: str) -> int | str:
    return absent if value is None else value
