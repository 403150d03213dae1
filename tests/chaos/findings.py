"""What broke a rule. Each kind of run has an enumeration of its rules."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation. `number`: the job's, where it is about one."""

    rule: StrEnum
    detail: str
    number: int | None = None
    missing: bool = False
    """something is not there that should be"""
