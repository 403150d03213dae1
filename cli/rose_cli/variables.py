"""The `ROSE_` variables that any command knows."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rose.errors import ConfigurationError
from rose.validation import did_you_mean
from rose_worker.settings import WorkerSettings


def reject_unknown_variables() -> None:
    """A misspelt `ROSE_` variable would silently not apply.

    Raises:
        ConfigurationError
    """
    known = {f"ROSE_{name.upper()}" for name in WorkerSettings.model_fields}
    if _variables() <= known:
        return
    from rose_gateway.settings import GatewaySettings, variable

    known |= {variable(name) for name in GatewaySettings.model_fields}
    if unknown := sorted(_variables() - known):
        names = "; ".join(name + did_you_mean(name, known) for name in unknown)
        raise ConfigurationError(
            f"unknown setting {names}: see `rose worker --help` and `rose gateway --help` for all "
            "of them"
        )


def _variables() -> set[str]:
    return {name.upper() for name in os.environ if name.upper().startswith("ROSE_")}


def options_of(
    fields: dict[str, FieldInfo], variable_of: Callable[[str], str], headings: Mapping[str, str]
) -> dict[str, tuple[Any, Any]]:
    """Of each field: the type and the option of a command line.

    `headings`: of the help, each by the first field under it.
    """
    heading: str | None = None
    options = {}
    for name, field in fields.items():
        heading = headings.get(name, heading)
        options[name] = field.annotation, _option(name, field, variable_of(name), heading)
    return options


def _option(name: str, field: FieldInfo, variable_name: str, heading: str | None) -> Any:
    default = field.default
    secret = field.annotation in (SecretStr, SecretStr | None)
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    notes = [f"env: {variable_name}"]
    if default not in (None, "", PydanticUndefined):
        notes.insert(0, f"default: {default}")
    flag = name.replace("_", "-")
    return typer.Option(
        f"--{flag}/--no-{flag}" if default is True else f"--{flag}",
        help=f"{field.description} [{'; '.join(notes)}]",
        parser=SecretStr if secret else None,
        metavar=name.rpartition("_")[2].upper() if secret else None,
        show_default=False,
        rich_help_panel=heading,
    )
