"""Names of a package that are loaded at first use."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def loader(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The package's `__getattr__`. `modules`: which names each of its modules defines."""
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
