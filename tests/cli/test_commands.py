"""`rose`, as a person and as a script use it."""

import json
from typing import Any

from rose_producer import Client, Request
from rose_worker.settings import WorkerSettings
from tests.support.bench import wait_until
from tests.support.command import Rose
from tests.support.echo import StartWorker, digest


def test_a_job_from_submit_to_result(
    rose: Rose, rose_process: Rose, start_worker: StartWorker
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


def test_a_queue_that_nobody_serves_is_said(rose_process: Rose, queue: str) -> None:
    # when
    ended = rose_process("submit", "ab", "--stream", "--deadline", "3")
    # then: it waits, up to the deadline
    said, failed = ended.stderr.splitlines()
    assert f"no worker serves queue {queue}" in said
    assert "rose worker" in said
    assert "its deadline has passed" in failed
    assert ended.returncode == 1


def test_json_is_one_value_a_line(rose: Rose, start_worker: StartWorker) -> None:
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


def test_prompts_come_from_stdin_and_as_chat(rose: Rose, start_worker: StartWorker) -> None:
    start_worker()
    flags = ("--stream", "--chat", "--max-new-tokens", "2", "--priority", "high")
    assert rose("submit", "-", *flags, stdin="xy").stdout.endswith("120 121 \n")


def test_the_queue_s_age_is_an_age(rose: Rose, start_worker: StartWorker) -> None:
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
    rose: Rose, queue: str, start_worker: StartWorker
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


def test_a_queue_that_was_not_meant_is_told_which_was(
    rose: Rose, queue: str, start_worker: StartWorker
) -> None:
    # given: a worker of another queue, whose name is much like this one
    meant = f"{queue}-b"
    start_worker(queue=meant, partitions=2)
    wait_until(lambda: meant in rose("status", "--all").stdout)
    # when
    shown = rose("status").stdout
    # then
    assert f"no worker serves queue {queue}, did you mean {meant}?" in shown
    # and there the number of partitions differs
    differs = f"ROSE_PARTITIONS is 1 here, and the workers of queue {meant} have 2"
    assert differs in rose("status", "--queue", meant).stdout
    assert "trouble" not in rose("status", "--queue", meant, ROSE_PARTITIONS="2").stdout


def test_a_waiting_job_is_cancelled_and_says_so(rose: Rose) -> None:
    job_id = rose("submit", "ab").stdout.strip()
    assert json.loads(rose("status", "--json").stdout)["waiting"]["normal"] == 1
    assert rose("cancel", job_id, "--json").stdout == f'{{"id": "{job_id}", "cancelled": true}}\n'
    ended = rose("stream", job_id)
    assert (ended.returncode, ended.stderr) == (1, f"rose: job {job_id} was cancelled\n")


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


def test_a_load_is_submitted_and_read(rose: Rose, start_worker: StartWorker) -> None:
    # given
    start_worker()
    # when
    ended = rose("load", "--rate", "50", "--seconds", "1", "--json")
    # then
    counts = json.loads(ended.stdout)
    assert counts["submitted"] == counts["finished"] > 0
    assert counts["tokens"] > 0


def test_numbers_are_shown(rose: Rose, client: Client, start_worker: StartWorker) -> None:
    start_worker(task="embed")
    (job,) = client.submit_many([Request(("a", "b"), encode={"dimensions": 2})])

    shown = rose("result", job.id).stdout
    answer = json.loads(rose("result", job.id, "--json").stdout)
    event = json.loads(rose("stream", job.id, "--json").stdout)

    rows = [digest("a", 2), digest("b", 2)]
    assert [json.loads(line) for line in shown.splitlines()] == rows
    assert answer["numbers"] == rows
    assert event["numbers"][0] == 2


def test_texts_are_embedded(rose: Rose, start_worker: StartWorker) -> None:
    # given
    start_worker(task="embed")
    # when
    shown = rose("embed", "a", "b", "--dimensions", "2")
    lines = rose("embed", "--json", stdin="c\n\nd\n").stdout.splitlines()
    # then
    assert shown.returncode == 0, shown.stderr
    assert [json.loads(line) for line in shown.stdout.splitlines()] == [
        digest("a", 2),
        digest("b", 2),
    ]
    expected = [{"text": text, "embedding": digest(text)} for text in "cd"]
    assert [json.loads(line) for line in lines] == expected
    # and a mistake is one line
    empty = rose("embed", stdin="\n")
    assert (empty.returncode, empty.stderr.count("\n")) == (2, 1)
    other = rose("rerank", "query", "a")
    assert (other.returncode, other.stdout, other.stderr.count("\n")) == (2, "", 1)


def test_texts_are_ranked(rose: Rose, start_worker: StartWorker) -> None:
    # given: a score is the share of the query's words that a text has
    start_worker(task="score")
    # when
    lines = rose("rerank", "red fox", "dog", "red fox", "fox", "--json").stdout.splitlines()
    shown = rose("rerank", "red fox", "--top", "2", stdin="dog\nred fox\nfox\n").stdout
    # then
    assert [json.loads(line) for line in lines] == [
        {"index": 1, "score": 1.0, "text": "red fox"},
        {"index": 2, "score": 0.5, "text": "fox"},
        {"index": 0, "score": 0.0, "text": "dog"},
    ]
    assert shown == "1.000000\tred fox\n0.500000\tfox\n"
