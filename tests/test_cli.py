"""`rose`, as a person and as a script use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from demo.broker import EmbeddedBroker
from worker.settings import WorkerSettings

Rose = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def rose(broker: EmbeddedBroker, queue: str) -> Rose:
    def run(*words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rose", *words],
            capture_output=True,
            text=True,
            timeout=60,
            input=stdin,
            env={**os.environ, "ROSE_REDIS_URL": broker.url, "ROSE_QUEUE": queue, **env},
        )

    return run


def test_a_job_from_submit_to_result(rose: Rose, start_worker: Callable[..., object]) -> None:
    # given
    start_worker()
    # when
    job_id = rose("submit", "ab", "--max-new-tokens", "3").stdout.strip()
    # then
    assert rose("result", job_id).stdout == "97 98 97 \n"
    assert rose("stream", job_id).stdout == "97 98 97 \n"
    assert rose("stream", job_id, "--cursor", "2").stdout == "97 \n"
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
        (["submit", "x", "--top-p", "0"], 2, "top_p"),
        (["submit", "x", "--max-new-tokens", "0"], 2, "max_new_tokens"),
        (["submit", ""], 2, "prompt"),
        (["submit", "x", "--priority", "urgent"], 2, "urgent"),
        (["submit", "x" * 70_000, "--idempotency-key", ""], 2, "idempotency_key"),
        (["stream", "0-nobody"], 1, "no job 0-nobody"),
        (["result", "0-nobody"], 1, "no job 0-nobody"),
        (["cancel", "0-nobody"], 1, "no job 0-nobody"),
        (["status", "--queue", "a b"], 2, "queue name"),
        (["status", "--redis-url", "http://x"], 2, "ROSE_REDIS_URL"),
        (["worker", "--lease-s", "0"], 2, "lease_s"),
        (["generate", "x", "--model", "/no/such/folder"], 1, "/no/such/folder"),
        (["generate", ""], 2, "empty"),
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
    assert ended.stdout == ""
    if as_json is not None:
        assert says in json.loads(as_json.stderr)["message"]


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
