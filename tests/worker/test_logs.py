"""The worker's log as machines read it."""

import json
import logging
import sys
from collections.abc import Callable

import redis

from rose.logs import JsonFormatter
from rose.protocol import Partition, Priority
from rose_cli.local.services import WorkerProcess
from rose_producer import Client
from tests.support.bench import wait_until


def test_json_lines_name_job_and_consumer_and_never_quote_a_prompt(
    client: Client,
    raw: redis.Redis,
    partition: Partition,
    start_worker: Callable[..., WorkerProcess],
) -> None:
    # given: debug tells most
    worker = start_worker(log_format="json", log_level="debug", max_context=20)
    # when: a job that runs, one that is too long, and one that cannot be read
    ran = client.submit("secret words", max_new_tokens=3)
    too_long = client.submit([{"role": "user", "content": "secret words" * 5}], max_new_tokens=3)
    raw.xadd(partition.jobs(Priority.NORMAL), {"job": b"\xc1secret words"})
    assert ran.result(90).token_ids
    wait_until(lambda: raw.xlen(partition.dead) == 1)
    wait_until(lambda: too_long.status().status == "failed")
    worker.terminate()
    # then
    lines = [json.loads(line) for line in worker.log.splitlines()]
    assert all({"time", "level", "logger", "message", "consumer"} <= line.keys() for line in lines)
    assert {line["consumer"] for line in lines} == {"w0"}
    said = [(line["job"], line["message"]) for line in lines if "job" in line]
    assert any(job == ran.id and "finished" in message for job, message in said)
    assert any(job == too_long.id and "prompt_too_long" in message for job, message in said)
    assert "secret" not in worker.log


def test_an_exception_is_told_without_its_words() -> None:
    # given
    prompt = "secret"
    try:
        int(prompt)
    except ValueError:
        trouble = sys.exc_info()
    record = logging.LogRecord("rose", logging.ERROR, "x.py", 1, "it broke", None, trouble)
    # when
    line = JsonFormatter({"consumer": "w"}).format(record)
    # then
    assert json.loads(line)["exception"] == "ValueError"
    assert "test_logs.py" in json.loads(line)["traceback"]
    assert "secret" not in line


def test_plain_lines_say_what_serves_and_never_hold_prompts_or_answers(
    client: Client, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given
    worker = start_worker(max_batch_size=4)
    # when
    job = client.submit("a very secret prompt", max_new_tokens=3)
    job.result(90)
    assert worker.terminate() == 0
    # then
    lines = worker.log.splitlines()
    assert all(line.split()[2] in ("INFO", "WARNING") for line in lines)
    (line,) = [line for line in lines if " serves " in line]
    assert "worker w0 serves null on cpu, dtype none, decoder none, 4 slots, http://" in line
    assert f"job {job.id} finished" in worker.log
    assert "secret" not in worker.log
    assert "97 32" not in worker.log
