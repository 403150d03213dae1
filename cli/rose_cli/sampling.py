"""The options that say how to generate, the same for every command that does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from rose.errors import InvalidParameter
from rose_cli.options import given

_OPTIONS: dict[str, Any] = {
    "max_new_tokens": Annotated[int | None, typer.Option(help="Most tokens to generate.")],
    "temperature": Annotated[float | None, typer.Option(help="0 is greedy.")],
    "top_k": Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")],
    "top_p": Annotated[float | None, typer.Option(help="Keep this much probability.")],
    "min_p": Annotated[float | None, typer.Option(help="Keep this share of the likeliest.")],
    "seed": Annotated[int | None, typer.Option(help="Makes sampling repeatable.")],
    "repetition_penalty": Annotated[
        float | None, typer.Option(help="Above 1: fewer tokens of prompt and output again.")
    ],
    "presence_penalty": Annotated[
        float | None, typer.Option(help="Above 0: fewer tokens of the output again.")
    ],
    "frequency_penalty": Annotated[
        float | None, typer.Option(help="The same, for each time that one came.")
    ],
    "logit_bias": Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="Make a token likelier, or less.")
    ],
    "stop": Annotated[list[str] | None, typer.Option(help="Stop at this text.")],
    "stop_token_ids": Annotated[
        list[int] | None, typer.Option("--stop-token-id", help="Stop at this token.")
    ],
    "ignore_eos": Annotated[bool | None, typer.Option(help="Go on after the end.")],
    "min_new_tokens": Annotated[int | None, typer.Option(help="Least tokens to generate.")],
    "json_schema": Annotated[
        str | None, typer.Option(help="The text is JSON of this schema; @FILE reads it.")
    ],
    "regex": Annotated[
        str | None, typer.Option(help="The text matches this expression; @FILE reads it.")
    ],
    "grammar": Annotated[
        str | None, typer.Option(help="The text fits this Lark grammar; @FILE reads it.")
    ],
}


def with_sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` these options; it gets what was said as one argument, `sampling`."""

    @wraps(command)
    def wrapper(*args: Any, **values: Any) -> None:
        said = {name: values.pop(name) for name in _OPTIONS}
        command(*args, **values, sampling=_sampling(said))

    own = inspect.signature(command, eval_str=True).parameters
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in _OPTIONS.items()
    ]
    parameters = [p for name, p in own.items() if name != "sampling"] + options
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _sampling(values: dict[str, Any]) -> dict[str, Any]:
    """What was said, as requests and the engine take it. Raises: InvalidParameter"""
    said = given(**values)
    for name in ("json_schema", "regex", "grammar"):
        if name in said:
            said[name] = _text_of(said[name])
    if "logit_bias" in said:
        said["logit_bias"] = [_bias_of(word) for word in said["logit_bias"]]
    return {name: tuple(v) if isinstance(v, list) else v for name, v in said.items()}


def _bias_of(word: str) -> tuple[int, float]:
    """The token id and the bias in ID=BIAS. Raises: InvalidParameter"""
    token_id, _, bias = word.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise InvalidParameter(f"--logit-bias {word!r}: must be ID=BIAS, such as 42=-3.5") from None


def _text_of(word: str | None) -> str | None:
    """What an option says, or the file that it names with @. Raises: InvalidParameter"""
    if word is None or not word.startswith("@"):
        return word
    try:
        return Path(word[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{word}: cannot be read: {error}") from None
