"""What a command reads and writes: stdin that is no text, output that nobody can take."""

import json
import os
import signal
import subprocess
import sys
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import BinaryIO

import pytest

from rose_cli.console import Console
from tests.support.command import Rose


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_input_that_is_no_text_is_a_mistake(rose_process: Rose, encoding: str) -> None:
    env = {"PYTHONIOENCODING": encoding}
    ended = rose_process("submit", "-", text=False, env=env, input=b"caf\xe9")
    assert (ended.returncode, ended.stderr.count(b"\n")) == (2, 1), ended.stderr
    assert b"stdin is not text" in ended.stderr


def test_a_closed_stdin_is_a_mistake(place: dict[str, str]) -> None:
    closed = ["sh", "-c", f"exec {sys.executable} -m rose_cli submit - <&-"]
    ended = subprocess.run(closed, capture_output=True, env={**os.environ, **place}, timeout=240)
    assert (ended.returncode, ended.stderr.count(b"\n")) == (2, 1), ended.stderr
    assert b"stdin is closed" in ended.stderr


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape", "cp1252"])
def test_characters_that_the_terminal_lacks(rose_process: Rose, encoding: str) -> None:
    env = {"PYTHONIOENCODING": encoding}
    ended = rose_process("top", "--once", text=False, env=env)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"dead letters" in ended.stdout
    assert b"??" in ended.stdout


def test_json_for_a_terminal_without_unicode_is_json(rose_process: Rose) -> None:
    words = ("generate", "犬 🦊", "--json", "--max-new-tokens", "1")
    ended = rose_process(*words, env={"PYTHONIOENCODING": "latin-1"})
    assert json.loads(ended.stdout)["prompt"] == "犬 🦊"


def ended_with_output(
    stdout: int | BinaryIO, place: dict[str, str], words: list[str]
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "rose_cli", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **place},
        timeout=240,
    )


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["--help"]])
def test_output_without_room_is_one_line(place: dict[str, str], words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = ended_with_output(full, place, words)
    assert ended.stderr == b"rose: cannot write: No space left on device\n"
    assert ended.returncode == 1


@pytest.mark.parametrize("words", [["status"], ["--version"], ["--help"]])
def test_a_reader_who_is_gone_ends_a_command_without_a_word(
    place: dict[str, str], words: list[str]
) -> None:
    # given
    reading, writing = os.pipe()
    os.close(reading)
    # when
    ended = ended_with_output(writing, place, words)
    os.close(writing)
    # then
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_drawing_for_a_reader_who_is_gone_is_an_error_for_main() -> None:
    # given
    reading, writing = os.pipe()
    os.close(reading)
    with FileIO(writing, "w") as pipe:
        console = Console(file=TextIOWrapper(pipe, write_through=True))
        # when / then
        with pytest.raises(BrokenPipeError):
            console.print("a line")
