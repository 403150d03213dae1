"""Which packages a command needs beyond the base install."""

from __future__ import annotations

from importlib.util import find_spec

from rose.errors import ConfigurationError

ENGINE = ("torch", "transformers", "tokenizers", "llguidance")


def missing(*modules: str) -> list[str]:
    return [name for name in modules if find_spec(name) is None]


def require(*modules: str) -> None:
    """Raises: ConfigurationError: says what to install."""
    absent = missing(*modules)
    if absent:
        raise ConfigurationError(f"this needs {' and '.join(absent)}: install roseinfer[worker]")
