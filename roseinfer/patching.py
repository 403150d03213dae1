"""Patches a module's attribute for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def patched(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Within, `module.name` is `value`."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
