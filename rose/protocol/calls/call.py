"""One call of a script, and what all of them need."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rose.errors import MalformedMessage
from rose.protocol.scripts import Script

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
