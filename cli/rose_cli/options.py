"""The options that several commands have, and how a command gets those of a table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from rose_producer.settings import ProducerSettings

#: Where the options are that say where Redis is.
REDIS = "Redis and queue"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line.")]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url", help="Where Redis is. [env: ROSE_REDIS_URL]", rich_help_panel=REDIS
    ),
]
Queue = Annotated[
    str | None,
    typer.Option("--queue", help="Which queue. [env: ROSE_QUEUE]", rich_help_panel=REDIS),
]
Priority = Annotated[str, typer.Option(help="high, normal or low.")]


def given(**values: Any) -> dict[str, Any]:
    """The options that were set; the rest is left to the environment and the defaults."""
    return {name: value for name, value in values.items() if value is not None}


def settings_of(redis_url: str | None, queue: str | None = None) -> ProducerSettings:
    """Raises: ConfigurationError"""
    # Here, because some commands need no queue.
    from rose_cli.variables import reject_unknown_variables
    from rose_producer.settings import ProducerSettings

    reject_unknown_variables()
    return ProducerSettings(**given(redis_url=redis_url, queue=queue))


def command_group(about: str | None = None) -> typer.Typer:
    """A command that has commands of its own."""
    return _Commands(help=about, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


class GroupedHelp(TyperCommand):
    """Its help has the options under the headings that they name, without rich."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_heading(parameter), []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _heading(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or "Options"


class _Commands(typer.Typer):
    def command(self, name: str | None = None, **more: Any) -> Any:
        return super().command(name, **{"cls": GroupedHelp} | more)


def with_options(
    argument: str, options: Mapping[str, Any], gather: Callable[[dict[str, Any]], Any] = dict
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `options`, by name and annotation; the values given come as one `argument`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapper(*args: Any, **values: Any) -> None:
            chosen = given(**{name: values.pop(name) for name in options})
            command(*args, **values, **{argument: gather(chosen)})

        own = inspect.signature(command, eval_str=True).parameters
        parameters = [parameter for name, parameter in own.items() if name != argument]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            for name, option in options.items()
        ]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate
