"""The options of both command lines are those of the schema, and arrive as its values."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rose.sampling import GRAMMARS, PARAMETERS, Parameter, SamplingParams
from rose_cli.commands import import_command
from rose_cli.sampling import with_sampling_options
from roseinfer.cli_options import parser, sampling_params

#: What a person writes for a parameter, and what it means.
WORDS: dict[type, tuple[list[str], Any]] = {
    int: (["7"], 7),
    float: (["0.5"], 0.5),
    str: (["{}"], "{}"),
    bool: ([], True),
    tuple: (["7=-1.5"], (7, -1.5)),
}


def words_of(parameter: Parameter) -> tuple[list[str], Any]:
    """A flag with its value, and what the parameter is then."""
    name = "stop-token-id" if parameter.name == "stop_token_ids" else parameter.name
    words, value = WORDS[parameter.type]
    flag = f"--{name.replace('_', '-')}"
    return [flag, *words], (value,) if parameter.takes_several else value


def received(words: list[str]) -> dict[str, Any]:
    """What a command with the sampling options is given."""
    given: list[dict[str, Any]] = []

    def command(*, sampling: dict[str, Any]) -> None:
        given.append(sampling)

    app = typer.Typer()
    app.command()(with_sampling_options(command))
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return given[0]


def test_submit_has_an_option_for_every_parameter() -> None:
    options = {option.name for option in import_command("submit").params}
    assert {parameter.name for parameter in PARAMETERS} <= options


@pytest.mark.parametrize(
    "parameter",
    [p for p in PARAMETERS if "logprobs" not in p.name],
    ids=lambda parameter: parameter.name,
)
def test_an_option_of_rose_arrives(parameter: Parameter) -> None:
    words, value = words_of(parameter)
    assert received(words) == {parameter.name: value}


def test_nothing_said_is_nothing_given() -> None:
    assert received([]) == {}


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_can_be_read_from_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("x+", encoding="utf-8")
    assert received([f"--{name.replace('_', '-')}", f"@{path}"]) == {name: "x+"}


@pytest.mark.parametrize(
    "parameter",
    [
        p
        for p in PARAMETERS
        if p.type in (int, float, str) and not p.takes_several and p.name != "top_logprobs"
    ],
    ids=lambda parameter: parameter.name,
)
def test_an_option_of_the_engines_programs_arrives(parameter: Parameter) -> None:
    options = parser("", several_prompts=False)
    words, value = words_of(parameter)
    arguments = options.parse_args(["--prompt", "x", "--do-sample", *words])
    assert getattr(sampling_params(arguments), parameter.name) == value


def test_the_engines_programs_are_greedy_with_the_schemas_defaults() -> None:
    options = parser("", several_prompts=False)
    assert sampling_params(options.parse_args(["--prompt", "x"])) == SamplingParams()
    drawn = sampling_params(options.parse_args(["--prompt", "x", "--do-sample"]))
    assert drawn == SamplingParams(temperature=1.0)
