"""`rose worker`: its options are the fields of WorkerSettings."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rose_cli.commands import ENGINE, require
from rose_cli.options import with_options
from rose_worker.settings import WorkerSettings, reject_unknown_variables


def _option(name: str, field: FieldInfo) -> Any:
    default = field.default
    secret = field.annotation is SecretStr
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    notes = [f"env: ROSE_{name.upper()}"]
    if default is not None and default is not PydanticUndefined:
        notes.insert(0, f"default: {default}")
    flag = name.replace("_", "-")
    return typer.Option(
        f"--{flag}/--no-{flag}" if default is True else f"--{flag}",
        help=f"{field.description} [{'; '.join(notes)}]",
        parser=SecretStr if secret else None,
        metavar="URL" if secret else None,
        show_default=False,
    )


_OPTIONS = {
    name: Annotated[cast(Any, field.annotation) | None, _option(name, field)]
    for name, field in WorkerSettings.model_fields.items()
}


@with_options("said", _OPTIONS)
def worker(said: dict[str, Any]) -> None:
    """Serve a queue: pull jobs into free slots, generate, publish every token once."""
    reject_unknown_variables()
    settings = WorkerSettings(**said)
    if settings.engine == "rose":
        require(*ENGINE)
    from rose_worker.main import run

    run(settings)
