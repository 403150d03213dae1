"""Something else in the place of what another module has, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Whoever looks `name` up in `module` meanwhile finds `value`."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
