"""What broke a rule, for the runs whose rules are an enumeration of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

Rules = Iterable[StrEnum]


@dataclass(frozen=True, slots=True)
class Finding:
    rule: StrEnum
    detail: str
