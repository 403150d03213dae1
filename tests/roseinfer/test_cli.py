"""The command-line programs, as a user runs them, on the built-in model."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(module: str, *arguments: str) -> tuple[int, str, str]:
    """Status and what is said, in this process: a new one imports torch for seconds."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status: int = import_module(f"roseinfer.{module}").main(["--device", "cpu", *arguments])
    return status, out.getvalue(), err.getvalue()


def output(module: str, *arguments: str) -> str:
    status, out, err = run(module, *arguments)
    assert (status, err) == (0, "")
    return out


def test_generate_streams_what_it_returns() -> None:
    arguments = ("--prompt", "Once upon a time", "--max-new-tokens", "12")
    whole = output("cli_generate", *arguments, "--no-amp")
    assert len(whole.split()) > 3
    assert output("cli_generate", *arguments, "--stream") == whole


def test_online_example_joins_late() -> None:
    sampling = ("--do-sample", "--top-k", "20", "--top-p", "0.9", "--temperature", "0.8")
    lines = output(
        "online_example",
        *("--prompts", "Once upon a time", "One day", "--max-new-tokens", "8", "--stream"),
        *("--no-stop-on-eos", *sampling),
    ).splitlines()
    assert lines.index("step 4: request-1 joins") < lines.index("step 7: request-0 leaves (length)")


@pytest.mark.parametrize(
    ("module", "arguments", "lines"),
    [
        ("cli_generate", (), ("",)),
        ("cli_generate_batch", (), ("[0] ", "[1] ", "[2] ")),
        ("cli_generate_batch", ("--prompts", "Once", "One day"), ("[0] ", "[1] ")),
        ("offline_example", (), ("request-0: ", "request-1: ", "request-2: ")),
        ("offline_example", ("--prompts", "Once", "--bf16"), ("request-0: ",)),
        ("online_example", (), ("step 0: request-0 joins", "step 4: request-1 joins")),
    ],
)
def test_every_program_runs_with_prompts_or_without(
    module: str, arguments: tuple[str, ...], lines: tuple[str, ...]
) -> None:
    printed = output(module, "--max-new-tokens", "6", *arguments).splitlines()
    for line, start in zip(printed, lines, strict=False):
        assert line.startswith(start)
    assert len(printed) == len(lines) or module == "online_example"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt", "x", "--checkpoint-path", "/no/such/folder"), "no folder"),
        (("--prompt", "x", "--max-new-tokens", "0"), "max_new_tokens=0"),
        (("--prompt", ""), "prompt is empty"),
        (("--prompt", "x", "--temperature", "0.7"), "need --do-sample"),
        (("--prompt", "word " * 5000), "prompt is too long"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    status, _, err = run("cli_generate", *arguments)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


def test_as_a_process_it_streams_and_ends_well() -> None:
    words = ["--device=cpu", "--prompt=One day", "--max-new-tokens=4", "--stream"]
    done = subprocess.run(
        [sys.executable, "-m", "roseinfer.cli_generate", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) > 1
