"""A mistake of whoever runs a command: one line that says what was wrong."""

import errno
import json
import subprocess
import sys

import pytest

from rose_cli import main
from tests.support.command import Rose

NO_REDIS = ("--redis-url=redis://:secret@127.0.0.1:1/0", "--redis-retries=1")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["submit", "x", "--temperature", "-1"], 2, "temperature"),
        (["submit", ""], 2, "prompt"),
        (["submit"], 2, "missing argument 'prompts': see rose submit --help"),
        (["submit", "x", "--top-ks", "1"], 2, "--top-k"),
        (["submit", "x", "--top-k", "few"], 2, "--top-k"),
        (["submitt", "x"], 2, "submit"),
        (["keys", "revok", "x"], 2, "see rose keys --help"),
        (["keys", "create", "x", "--max-priority", "urgent"], 2, "--max-priority"),
        (["submit", "x", "--logit-bias", "seven=1"], 2, "ID=BIAS"),
        (["submit", "x", "--json-schema", "{"], 2, "json_schema"),
        (["submit", "x", "--regex", "@/no/such/file"], 2, "/no/such/file"),
        (["submit", "x", "--priority", "urgent"], 2, "urgent"),
        (["submit", "x" * 70_000, "--idempotency-key", ""], 2, "idempotency_key"),
        (["stream", "0-nobody"], 1, "no job 0-nobody"),
        (["result", "0-nobody"], 1, "no job 0-nobody"),
        (["cancel", "0-nobody"], 1, "no job 0-nobody"),
        (["status", "--queue", "a b"], 2, "queue name"),
        (["status", "--redis-url", "http://x"], 2, "ROSE_REDIS_URL"),
        (["worker", "--lease-s", "0"], 2, "lease_s"),
        (["worker", "--tool-format", "hermse"], 2, "ROSE_TOOL_FORMAT"),
        (["worker", "--engine=null", "--http-port=0", *NO_REDIS], 1, "rose: Redis cannot be used"),
        (["generate", "x", "--model", "/no/such/folder"], 1, "/no/such/folder"),
        (["generate", ""], 2, "empty"),
        (["generate", "x\udcff"], 2, "half of a surrogate pair"),
        (["generate", "x", "--weights", "int3"], 2, "int3"),
        (["generate", "x", "--weights", "int8", "--device", "meta"], 2, "for device='cpu'"),
        (["dead-letters", "show", "7"], 2, "'7' is no dead letter's handle"),
        (["dead-letters", "show", "0:1-0"], 1, "no dead letter 0:1-0"),
        (["dead-letters", "retry", "0:1-0"], 1, "no dead letter 0:1-0"),
        (["dead-letters", "retry"], 2, "--all"),
        (["dead-letters", "retry", "0:1-0", "--code", "x"], 2, "--code"),
        (["dead-letters", "purge", "0:1-0", "--all", "--yes"], 2, "--all"),
        (["dead-letters", "purge", "--all", "--yes", "--older-than", "1w"], 2, "7d"),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(
    rose: Rose, words: list[str], code: int, says: str
) -> None:
    # when
    ended = rose(*words)
    as_json = rose(*words, "--json") if words[0] != "worker" else None
    # then
    assert ended.returncode == code
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "secret" not in ended.stderr
    assert ended.stdout == ""
    if as_json is not None:
        assert says in json.loads(as_json.stderr)["message"]


@pytest.mark.parametrize("command", [["submit", "x"], ["status"], ["doctor"]])
def test_a_misspelt_variable_is_told_what_was_meant(
    rose: Rose, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    # given
    monkeypatch.setenv("ROSE_QEUE", "q")
    # when
    ended = rose(*command)
    # then
    assert ended.returncode == 2
    assert "ROSE_QEUE, did you mean ROSE_QUEUE?" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["submit", "x", "--temperature", "-1"], 2, "rose: temperature"),
        (["result", "0-nobody"], 1, "rose: no job 0-nobody"),
    ],
)
def test_a_mistake_ends_the_process_with_one_line(
    rose_process: Rose, words: list[str], code: int, says: str
) -> None:
    ended = rose_process(*words)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1)
    assert ended.stderr.startswith(says)


@pytest.mark.parametrize(
    "words",
    [
        ["rose_cli.main", "generate", "x", "--model", "/no/such/folder"],
        ["rose_cli.main", "generate", "x", "--max-new-tokens", "0"],
        ["roseinfer.cli_generate", "--prompt", "x", "--checkpoint-path", "/no/such/folder"],
        ["roseinfer.cli_generate", "--prompt", "x", "--max-new-tokens", "0"],
    ],
)
def test_a_mistake_is_told_before_torch_is_loaded(words: list[str]) -> None:
    # given
    module, *arguments = words
    code = (
        f"import sys, {module}; sys.argv[1:] = {arguments}\n"
        f"try:\n  sys.exit({module}.main())\n"
        "finally:\n  print(*sys.modules)"
    )
    # when
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    # then
    assert ended.returncode in (1, 2)
    assert ended.stderr.count("\n") == 1
    assert not {"torch", "transformers"} & set(ended.stdout.split())


def test_a_misspelt_setting_is_an_error(rose: Rose) -> None:
    ended = rose("worker", "--engine=null", ROSE_LEASE_SECONDS="5")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "ROSE_LEASE_SECONDS" in ended.stderr


def test_a_picture_that_cannot_be_written_is_a_mistake(rose: Rose) -> None:
    words = ("top", "--once", "--interval", "0.05", "--metrics", "127.0.0.1:1")
    ended = rose(*words, "--svg", "/no/such/folder/x.svg")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "/no/such/folder/x.svg" in ended.stderr


def test_an_interpreter_without_docstrings_is_a_mistake(rose_process: Rose) -> None:
    ended = rose_process("generate", "hi", env={"PYTHONOPTIMIZE": "2"})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[-1].startswith("rose: transformers reads its own docstrings")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "nothing is left"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (RuntimeError("can't start new thread"), "new thread"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory:\nat"), "Default"),
    ],
)
def test_a_machine_without_memory_is_told_in_one_line(
    error: Exception,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given
    def fail() -> None:
        raise error

    monkeypatch.setattr(main, "_run", fail)
    # when
    with pytest.raises(SystemExit) as ended:
        main.main()
    # then
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (1, 1)
    assert said.startswith("rose: out of memory (")
    assert says in said
