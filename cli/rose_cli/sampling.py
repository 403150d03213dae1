"""The options that say how to generate, the same for every command that does."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rose.errors import InvalidParameter
from rose.sampling import GRAMMARS, PARAMETERS, Parameter
from rose_cli.options import with_options

# What these ask for is not in the text that a command prints.
_NOT_OPTIONS = ("logprobs", "top_logprobs")


def _option(parameter: Parameter, heading: str) -> Any:
    """The type and the flag that typer makes an option of."""
    # A pair is written ID=BIAS.
    value_type: Any = str if parameter.type is tuple else parameter.type
    flags = ("--stop-token-id",) if parameter.name == "stop_token_ids" else ()
    option = typer.Option(
        *flags,
        help=_help(parameter),
        metavar="ID=BIAS" if parameter.type is tuple else None,
        rich_help_panel=heading,
    )
    return Annotated[
        list[value_type] | None if parameter.takes_several else value_type | None, option
    ]


def _help(parameter: Parameter) -> str:
    text = parameter.meaning[0].upper() + parameter.meaning[1:]
    if parameter.name in GRAMMARS:
        text += "; @FILE reads it from a file"
    default = f" [{parameter.default}]" if parameter.range and parameter.default is not None else ""
    return f"{text}.{default}"


def _sampling(values: dict[str, Any]) -> dict[str, Any]:
    """The values, as requests and the engine take them. Raises: InvalidParameter"""
    for name in GRAMMARS:
        if name in values:
            values[name] = _text_of(values[name])
    if "logit_bias" in values:
        values["logit_bias"] = [_bias_of(word) for word in values["logit_bias"]]
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _bias_of(word: str) -> tuple[int, float]:
    """The token id and the bias in ID=BIAS. Raises: InvalidParameter"""
    token_id, _, bias = word.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise InvalidParameter(f"--logit-bias {word!r}: must be ID=BIAS, such as 42=-3.5") from None


def _text_of(word: str) -> str:
    """What an option says, or the file that it names with @. Raises: InvalidParameter"""
    if not word.startswith("@"):
        return word
    try:
        return Path(word[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{word}: cannot be read: {error}") from None


_SHOWN = [parameter for parameter in PARAMETERS if parameter.name not in _NOT_OPTIONS]
_FIRST_OF_FORM = [parameter.name for parameter in _SHOWN].index("json_schema")

_OPTIONS = {
    parameter.name: _option(parameter, "Sampling" if index < _FIRST_OF_FORM else "Form of the text")
    for index, parameter in enumerate(_SHOWN)
}

#: Gives a command these options; it gets their values as one argument, `sampling`.
with_sampling_options = with_options("sampling", _OPTIONS, _sampling)
