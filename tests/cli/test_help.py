"""`--help` of every command, on a terminal of 80 columns."""

import re
from collections.abc import Iterator

import pytest
import typer

from rose.sampling import PARAMETERS
from rose_cli.commands import COMMANDS, import_command
from rose_worker.settings import WorkerSettings
from tests.support.command import Rose


def every_command() -> Iterator[list[str]]:
    yield []
    for name in COMMANDS:
        yield [name]
        for below in getattr(import_command(name), "commands", {}):
            yield [name, below]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def sections(shown: str) -> dict[str, str]:
    """The text under each heading."""
    _, *parts = re.split(r"^(\S[^\n]*):$", shown, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
@pytest.mark.usefixtures("narrow")
def test_help_fits_and_nothing_is_cut(rose: Rose, words: list[str]) -> None:
    shown = rose(*words, "--help").stdout
    assert max(len(line) for line in shown.splitlines()) <= 80
    said = [line for line in shown.splitlines() if not line.startswith("Usage:")]
    assert [line for line in said if line.endswith("...")] == []


@pytest.mark.usefixtures("narrow")
def test_options_stand_under_headings(rose: Rose) -> None:
    worker = sections(rose("worker", "--help").stdout)
    expected = ["Redis and queue", "Model", "Batches and memory", "Delivery"]
    assert [heading for heading in worker if heading in expected] == expected
    assert set(re.findall(r"--[\w-]+", worker["Options"])) == {"--help"}
    for name in WorkerSettings.model_fields:
        flag = f"  --{name.replace('_', '-')} "
        assert sum(flag in text for text in worker.values()) == 1, flag


@pytest.mark.usefixtures("narrow")
def test_generate_says_all_that_it_takes(rose: Rose) -> None:
    shown = sections(rose("generate", "--help").stdout)
    for parameter in import_command("generate").params:
        if not isinstance(parameter, typer.core.TyperOption):
            continue
        assert any(f"  {parameter.opts[0]}" in text for text in shown.values()), parameter.name
        assert parameter.help, parameter.name
    flags = "".join([shown["Sampling"], shown["Form of the text"]])
    for parameter in PARAMETERS:
        if parameter.name not in ("logprobs", "top_logprobs"):
            assert f"--{parameter.name.replace('_', '-').removesuffix('s')}" in flags
