"""`rose`, as a person and as a script use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import redis

from rose.protocol import Partition, Priority
from rose_cli.demo.broker import EmbeddedBroker
from rose_cli.demo.workers import WorkerProcess
from rose_producer import Client
from rose_worker.settings import WorkerSettings
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.echo import SLOW, running

Rose = Callable[..., Any]
NO_REDIS = ("--redis-url=redis://:secret@127.0.0.1:1/0", "--redis-retries=1")


@pytest.fixture
def place(broker: EmbeddedBroker, queue: str) -> dict[str, str]:
    return {"ROSE_REDIS_URL": broker.url, "ROSE_QUEUE": queue}


@pytest.fixture
def rose(place: dict[str, str]) -> Rose:
    """In this process."""
    return lambda *words, **given: run_rose(*words, **{**place, **given})


@pytest.fixture
def rose_process(place: dict[str, str]) -> Rose:
    def run(*words: str, text: bool = True, env: Mapping[str, str] = {}, **options: Any) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "rose_cli", *words],
            capture_output=True,
            text=text,
            timeout=240,
            env={**os.environ, **place, **env},
            **options,
        )

    return run


def test_a_job_from_submit_to_result(
    rose: Rose, rose_process: Rose, start_worker: Callable[..., object]
) -> None:
    # given
    start_worker()
    # when
    job_id = rose_process("submit", "ab", "--max-new-tokens", "3").stdout.strip()
    # then
    assert rose_process("stream", job_id).stdout == "97 98 97 \n"
    assert rose("stream", job_id, "--cursor", "2").stdout == "97 \n"
    assert rose("result", job_id).stdout == "97 98 97 \n"
    assert json.loads(rose("status", job_id, "--json").stdout)["status"] == "finished"
    assert "finished" in rose("status", job_id).stdout
    assert "ended already" in rose("cancel", job_id).stdout


def test_json_is_one_value_a_line(rose: Rose, start_worker: Callable[..., object]) -> None:
    # given
    start_worker()
    # when
    shown = rose("submit", "ab", "cd", "--stream", "--json", "--max-new-tokens", "2").stdout
    # then
    lines = [json.loads(line) for line in shown.splitlines()]
    assert [line.get("type", "id") for line in lines] == ["id", "tokens", "tokens", "finished"] * 2
    assert [line["cursor"] for line in lines[1:4]] == [1, 2, 2]
    answer = json.loads(rose("result", lines[0]["id"], "--json").stdout)
    assert answer["text"] == "97 98 "
    assert answer["finish_reason"] == "length"


def test_prompts_come_from_stdin_and_as_chat(
    rose: Rose, start_worker: Callable[..., object]
) -> None:
    start_worker()
    flags = ("--stream", "--chat", "--max-new-tokens", "2", "--priority", "high")
    assert rose("submit", "-", *flags, stdin="xy").stdout.endswith("120 121 \n")


def test_the_queue_s_age_is_an_age(rose: Rose, start_worker: Callable[..., object]) -> None:
    # given: nobody holds a job
    assert json.loads(rose("status", "--json").stdout)["oldest_running_age_s"] is None
    # when
    start_worker(min_step_s=0.05)
    job_id = rose("submit", "ab", "--max-new-tokens", "1000").stdout.strip()
    wait_until(lambda: json.loads(rose("status", "--json").stdout)["running"] == 1)
    # then
    assert 0 < json.loads(rose("status", "--json").stdout)["oldest_running_age_s"] < 300
    rose("cancel", job_id)


def test_every_queue_is_listed_with_its_model(
    rose: Rose, queue: str, start_worker: Callable[..., object]
) -> None:
    # given
    start_worker(model="story", max_context=5000)
    job_id = rose("submit", "ab").stdout.strip()
    rose("result", job_id)

    def listed() -> list[dict[str, Any]]:
        lines = rose("status", "--all", "--json").stdout.splitlines()
        return [one for line in lines if (one := json.loads(line))["queue"] == queue]

    # when: the worker that reads the queue for all has listed it
    wait_until(lambda: bool(listed()))
    # then
    (status,) = listed()
    said = ("name", "engine", "context_tokens", "dtype", "adapters", "workers")
    assert [status["served"][name] for name in said] == ["null:story", "null", 5000, "none", [], 1]
    row = next(line for line in rose("status", "--all").stdout.splitlines() if queue in line)
    assert row.split()[:5] == [queue, "null:story", "null", "5,000", "1"]
    assert "null:story, 5,000 tokens of context, engine null" in rose("status").stdout
    # and a job has no place there
    assert rose("status", job_id, "--all").returncode == 2


def test_a_waiting_job_is_cancelled_and_says_so(rose: Rose) -> None:
    job_id = rose("submit", "ab").stdout.strip()
    assert json.loads(rose("status", "--json").stdout)["waiting"]["normal"] == 1
    assert rose("cancel", job_id, "--json").stdout == f'{{"id": "{job_id}", "cancelled": true}}\n'
    ended = rose("stream", job_id)
    assert (ended.returncode, ended.stderr) == (1, f"rose: job {job_id} was cancelled\n")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["submit", "x", "--temperature", "-1"], 2, "temperature"),
        (["submit", ""], 2, "prompt"),
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


def test_worker_help_shows_every_setting(rose: Rose) -> None:
    shown = rose("worker", "--help", COLUMNS="200").stdout
    for name, field in WorkerSettings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in shown
        assert f"ROSE_{name.upper()}" in shown
        assert field.description


def test_generate_needs_no_queue(rose: Rose) -> None:
    ended = rose("generate", "Once upon a time", "--max-new-tokens", "12", "--json")
    assert ended.returncode == 0, ended.stderr
    assert len(json.loads(ended.stdout)["text"].split()) >= 5
    streamed = rose("generate", "Once upon a time", "--max-new-tokens", "12")
    assert streamed.stdout == json.loads(ended.stdout)["text"] + "\n"
    bound = rose("generate", "Is it warm?", "--regex", "yes|no", "--temperature", "1")
    assert bound.stdout in ("yes\n", "no\n")


def test_a_load_is_submitted_and_read(rose: Rose, start_worker: Callable[..., object]) -> None:
    # given
    start_worker()
    # when
    ended = rose("load", "--rate", "50", "--seconds", "1", "--json")
    # then
    counts = json.loads(ended.stdout)
    assert counts["submitted"] == counts["finished"] > 0
    assert counts["tokens"] > 0


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


def test_a_picture_that_cannot_be_written_is_a_mistake(rose: Rose) -> None:
    words = ("top", "--once", "--interval", "0.05", "--metrics", "127.0.0.1:1")
    ended = rose(*words, "--svg", "/no/such/folder/x.svg")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "/no/such/folder/x.svg" in ended.stderr


# Dead letters


def test_dead_letters_are_listed_shown_retried_and_purged(
    rose: Rose,
    rose_process: Rose,
    client: Client,
    raw: redis.Redis,
    partition: Partition,
    start_worker: Callable[..., WorkerProcess],
) -> None:
    # given: bytes that nobody can read, and a job too long for the worker that is to go on with it
    raw.xadd(partition.jobs(Priority.NORMAL), {"job": b"\xc1garbage"})
    long = client.submit([{"role": "user", "content": "secret\x1b[31m"}], max_new_tokens=200)
    large = start_worker(grace_s=0, **SLOW)
    wait_until(lambda: running(long))
    large.terminate()
    worker = start_worker(max_context=4)
    wait_until(lambda: raw.xlen(partition.dead) == 2)
    worker.terminate()
    # when: list
    listed = rose("dead-letters", "list")
    letters = [json.loads(x) for x in rose("dead-letters", "list", "--json").stdout.splitlines()]
    by_code = {letter["code"]: letter for letter in letters}
    too_long, garbage = by_code["prompt_too_long"], by_code["malformed_message"]
    # then
    assert listed.stdout.count("\n") == 3
    assert all(letter["handle"] in listed.stdout for letter in letters)
    assert (too_long["job_id"], garbage["job_id"], garbage["bytes"]) == (long.id, None, 8)
    only = rose("dead-letters", "list", "--code", "malformed_message", "--json").stdout
    assert [json.loads(line) for line in only.splitlines()] == [garbage]

    # when: show
    shown = rose("dead-letters", "show", too_long["handle"])
    # then: the prompt only when asked for, and never with its control characters
    assert long.id in shown.stdout
    assert "secret" not in shown.stdout
    assert "secret" not in rose("dead-letters", "show", too_long["handle"], "--json").stdout
    with_prompt = rose("dead-letters", "show", too_long["handle"], "--prompt").stdout
    assert "secret" in with_prompt
    assert "\x1b" not in with_prompt
    as_json = rose("dead-letters", "show", too_long["handle"], "--json", "--prompt").stdout
    assert json.loads(as_json)["job"]["prompt"][0]["content"] == "secret\x1b[31m"
    unreadable = json.loads(rose("dead-letters", "show", garbage["handle"], "--json").stdout)
    assert unreadable["cannot_be_decoded"]["error"] == "malformed_message"
    raw_bytes = rose_process("dead-letters", "show", garbage["handle"], "--raw", text=False)
    assert raw_bytes.stdout == b"\xc1garbage"

    # when: retry, with a worker that has room
    retried = rose("dead-letters", "retry", "--all")
    start_worker()
    # then: what cannot be read stays, with its error
    assert (retried.returncode, retried.stderr.count("\n")) == (1, 1)
    old, _, new = retried.stdout.strip().partition(" -> ")
    assert old == long.id
    assert rose("result", new).stdout.startswith("115 101 ")
    ((_, left),) = raw.xrange(partition.dead)
    assert left[b"job"] == b"\xc1garbage"

    # when: purge
    unasked = rose("dead-letters", "purge", garbage["handle"])
    kept = rose("dead-letters", "purge", "--all", "--older-than", "7d", "--yes")
    gone = rose("dead-letters", "purge", "--all", "--yes", "--json")
    # then
    assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
    assert kept.stdout == "0 dead letters purged\n"
    assert gone.stdout == '{"purged": 1}\n'
    assert rose("dead-letters", "list").stdout == "no dead letters\n"


def test_a_person_is_asked_before_a_purge(
    rose_process: Rose, raw: redis.Redis, partition: Partition
) -> None:
    # given
    raw.xadd(partition.dead, {"job": b"x"})
    for answer, left in ((b"n\n", 1), (b"y\n", 0)):
        # when
        keyboard, terminal = os.openpty()
        os.write(keyboard, answer)
        rose_process("dead-letters", "purge", "--all", stdin=terminal)
        os.close(keyboard)
        os.close(terminal)
        # then
        assert raw.xlen(partition.dead) == left
