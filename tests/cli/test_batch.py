"""`rose batch run`: a file of requests becomes a file of answers, however often it is stopped."""

import fcntl
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_gateway.batches.run import Checkpoint, Piece
from tests.conftest import needs_redis_server
from tests.support.batch_lines import CHAT, RESPONSES, completion, raw_line
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.echo import SLOW, serving
from tests.support.redis_users import guarded_server
from tests.support.users_at_work import QUEUE, url

Batch = Callable[..., subprocess.CompletedProcess[str]]
Begin = Callable[..., subprocess.Popen[bytes]]

#: What differs from job to job, and from run to run.
_OWN = ("id", "request_id", "created", "created_at", "completed_at", "prompt_tokens_details")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [raw_line(f"c{number}", completion(f"{number}")) for number in range(1, 9)]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    return tmp_path


@pytest.fixture
def batch(broker: EmbeddedBroker, queue: str, folder: Path) -> Batch:
    """Runs the command in the folder of `in.jsonl`, to `out.jsonl` if not told otherwise."""

    def run(*options: str, output: str = "out.jsonl", source: str = "in.jsonl") -> Any:
        files = (str(folder / source), "-o", str(folder / output))
        where = ("--redis-url", broker.url, "--queue", queue, "--json")
        return run_rose("batch", "run", *files, *where, *options)

    return run


@pytest.fixture
def begin(broker: EmbeddedBroker, queue: str, folder: Path) -> Begin:
    """Begins the command as a process in that folder. It says what it says to pipes."""

    def started(*options: str, output: str = "out.jsonl") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rose_cli", "batch", "run", "in.jsonl", "-o", output]
        command += ["--redis-url", broker.url, "--queue", queue, *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=folder)

    return started


def records(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _common(value: Any) -> Any:
    if isinstance(value, list):
        return [_common(item) for item in value]
    if isinstance(value, dict):
        return {name: _common(item) for name, item in value.items() if name not in _OWN}
    return value


def test_answers_come_in_the_order_of_their_lines(
    folder: Path, batch: Batch, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given: the first lines take longest
    start_worker(max_batch_size=4)
    lines = [
        raw_line(f"c{number}", completion(f"{number}", 400 // number)) for number in range(1, 30)
    ]
    chat = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    lines[10] = raw_line("chat", chat, CHAT)
    lines[20] = raw_line(
        "response", {"model": "null", "input": "Hi", "max_output_tokens": 2}, RESPONSES
    )
    (folder / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    # when
    ended = batch("--window", "7")
    # then
    facts = json.loads(ended.stdout)
    assert (ended.returncode, facts["lines"], facts["failed"]) == (0, 29, 0)
    answers = records(folder / "out.jsonl")
    assert [answer["custom_id"] for answer in answers] == [
        json.loads(line)["custom_id"] for line in lines
    ]
    kinds = [answers[number]["response"]["body"]["object"] for number in (0, 10, 20)]
    assert kinds == ["text_completion", "chat.completion", "response"]
    assert (folder / "out.errors.jsonl").read_bytes() == b""


def test_it_needs_no_web_server(
    folder: Path, broker: EmbeddedBroker, queue: str, start_worker: Any
) -> None:
    # given: nothing that an HTTP server is made of can be imported
    absent = ["fastapi", "httptools", "python_multipart", "starlette", "uvicorn"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "from rose_cli.main import main; main()"
    )
    files = ("in.jsonl", "-o", "out.jsonl")
    where = ("--redis-url", broker.url, "--queue", queue)
    start_worker()
    # when
    command = [sys.executable, "-c", code, "batch", "run", *files, *where]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    # then
    assert ended.returncode == 0, ended.stderr
    assert len(records(folder / "out.jsonl")) == 8


def test_bad_lines_are_in_the_error_file_with_their_numbers(
    folder: Path, batch: Batch, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given
    start_worker()
    lines = (folder / "in.jsonl").read_bytes().split(b"\n")
    lines[1], lines[2], lines[4] = b"not JSON", b"", raw_line("c5", {"model": "none", "prompt": ""})
    (folder / "in.jsonl").write_bytes(b"\n".join(lines))
    # when
    ended = batch("-e", str(folder / "bad.jsonl"))
    # then
    assert (ended.returncode, json.loads(ended.stdout)["failed"]) == (3, 2)
    bad = records(folder / "bad.jsonl")
    assert [(record["line"], record["custom_id"]) for record in bad] == [(2, None), (5, "c5")]
    assert bad[0]["error"]["message"].startswith("the line is not JSON")
    assert bad[1]["response"]["status_code"] == 400
    assert [answer["custom_id"] for answer in records(folder / "out.jsonl")] == [
        "c1",
        "c4",
        "c6",
        "c7",
        "c8",
    ]


def test_what_is_interrupted_goes_on_as_if_it_had_not_been(
    folder: Path,
    batch: Batch,
    begin: Begin,
    queue: str,
    raw: redis.Redis,
    start_worker: Callable[..., WorkerProcess],
) -> None:
    # given
    count, interruptions, seed = 200, 10, random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    start_worker(max_batch_size=8, **SLOW)
    lines = [
        raw_line(f"c{number}", completion(f"{number}", dice.randrange(1, 9)))
        for number in range(count)
    ]
    for number in dice.sample(range(count), 20):
        lines[number] = b"bad" * number
    (folder / "in.jsonl").write_bytes(b"\n".join(lines))
    written = folder / "out.jsonl"

    def size() -> int:
        return written.stat().st_size if written.exists() else 0

    # when
    for _ in range(interruptions):
        signum = dice.choice([signal.SIGINT, signal.SIGKILL])
        enough = size() + dice.randrange(-4000, 8_000)
        process = begin("--window", "24")
        wait_until(lambda p=process, e=enough: size() > e or p.poll() is not None)
        process.send_signal(signum)
        process.communicate()
    last = batch("--window", "24")
    # then: as an undisturbed run
    assert last.returncode == 3
    undisturbed = batch(output="other.jsonl")
    assert undisturbed.returncode == 3
    assert _common(records(written)) == _common(records(folder / "other.jsonl"))
    assert _common(records(folder / "out.errors.jsonl")) == _common(
        records(folder / "other.errors.jsonl")
    )
    # and no line was asked twice
    good = len(records(written))
    assert good == count - 20
    assert len(list(raw.scan_iter(f"rose:{{{queue}:0}}:state:*", count=10_000))) == 2 * good


def test_ctrl_c_says_how_to_go_on(
    folder: Path, begin: Begin, batch: Batch, start_worker: Any
) -> None:
    # given: nobody answers
    process = begin()
    wait_until(lambda: (folder / "out.jsonl.progress").exists())
    # when
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    # then
    assert process.returncode == 128 + signal.SIGINT
    assert b"the same command goes on" in said
    start_worker()
    assert batch().returncode == 0


def test_answers_may_go_to_stdout(folder: Path, begin: Begin, start_worker: Any) -> None:
    # given
    start_worker()
    with (folder / "in.jsonl").open("ab") as lines:
        lines.write(b"\nno JSON\n")
    # when
    answers, said = begin("-e", "errors.jsonl", output="-").communicate()
    # then
    ids = [json.loads(line)["custom_id"] for line in answers.splitlines()]
    assert ids == [f"c{number}" for number in range(1, 9)]
    assert "9 lines: 8 answered, 1 failed" in said.decode()
    assert [record["line"] for record in records(folder / "errors.jsonl")] == [9]
    assert {path.name for path in folder.iterdir()} == {"in.jsonl", "errors.jsonl"}


def test_a_reader_of_stdout_may_leave_early(begin: Begin, start_worker: Any) -> None:
    # given: nobody answers, and nobody reads
    process = begin("-e", "errors.jsonl", output="-")
    assert process.stdout is not None
    process.stdout.close()
    # when
    start_worker()
    # then: it ends without a word
    assert process.stderr is not None
    with process.stderr as said:
        assert said.read() == b""
    assert process.wait(90) == 128 + signal.SIGPIPE


def test_stdout_needs_a_place_for_lines_without_an_answer(folder: Path) -> None:
    # when
    ended = run_rose("batch", "run", str(folder / "in.jsonl"), "-o", "-")
    # then
    assert ended.returncode == 2
    assert "say with -e" in ended.stderr


def test_stdout_s_error_file_is_not_written_over(folder: Path) -> None:
    # given
    errors = folder / "errors.jsonl"
    errors.write_text("mine")
    # when
    words = ("batch", "run", str(folder / "in.jsonl"), "-o", "-", "-e", str(errors))
    ended = subprocess.run(
        [sys.executable, "-m", "rose_cli", *words], capture_output=True, text=True, check=False
    )
    # then
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "say --overwrite" in ended.stderr
    assert errors.read_text() == "mine"


def test_what_was_written_behind_the_checkpoint_is_cut_off(
    folder: Path, batch: Batch, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given: a run that has ended, with the checkpoint of its third line
    start_worker()
    batch()
    whole = (folder / "out.jsonl").read_bytes()
    progress = folder / "out.jsonl.progress"
    ended = Checkpoint.decode(progress.read_bytes())
    lines = (folder / "in.jsonl").read_bytes().split(b"\n")
    size = sum(len(line) + 1 for line in whole.split(b"\n")[:3])
    third = Checkpoint(
        ended.batch_id,
        ended.input,
        line=3,
        input_bytes=sum(len(line) + 1 for line in lines[:3]),
        succeeded=3,
        output=(Piece("out.jsonl", size),),
    )
    # when
    for torn in (size, size + 1, len(whole) - 1, len(whole)):
        progress.write_bytes(third.encode())
        (folder / "out.jsonl").write_bytes(whole[:torn])
        again = batch()
        # then: the jobs are the same, so the bytes are
        assert (again.returncode, json.loads(again.stdout)["done_before"]) == (0, 3)
        assert (folder / "out.jsonl").read_bytes() == whole


def test_a_run_that_has_ended_does_nothing_more(
    folder: Path, batch: Batch, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given
    start_worker().wait_ready()
    batch()
    before = (folder / "out.jsonl").read_bytes()
    # when
    again = batch()
    # then
    assert (again.returncode, json.loads(again.stdout)["done_before"]) == (0, 8)
    assert (folder / "out.jsonl").read_bytes() == before


def test_files_that_belong_to_something_else_are_left_alone(
    folder: Path, batch: Batch, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given
    start_worker()
    (folder / "mine.jsonl").write_text("precious")
    assert batch().returncode == 0
    (folder / "changed.jsonl").write_bytes((folder / "in.jsonl").read_bytes() + b"\n{}")
    # when
    refused = [
        batch(output="mine.jsonl"),
        batch(source="changed.jsonl"),
        batch(output="in.jsonl"),
        batch("-e", str(folder / "out.jsonl")),
        batch(source="none.jsonl"),
        batch(output="none/out.jsonl"),
    ]
    # then
    assert [ended.returncode for ended in refused] == [2] * 6
    assert all(json.loads(ended.stderr)["error"] == "configuration" for ended in refused)
    assert (folder / "mine.jsonl").read_text() == "precious"
    # unless it is said
    assert batch("--overwrite", output="mine.jsonl").returncode == 0
    assert len(records(folder / "mine.jsonl")) == 8


def test_two_runs_do_not_write_to_one_file(folder: Path, batch: Batch) -> None:
    with (folder / "out.jsonl").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        ended = batch()

    assert ended.returncode == 2
    assert "another run" in json.loads(ended.stderr)["message"]


def test_a_checkpoint_that_is_none_is_told(folder: Path, batch: Batch) -> None:
    (folder / "out.jsonl.progress").write_text('{"version": 2}')

    assert "is not what this version" in json.loads(batch().stderr)["message"]


def test_a_redis_that_is_not_there_is_told_at_once(folder: Path, batch: Batch) -> None:
    ended = batch("--redis-url", "redis://127.0.0.1:1/0")

    assert (ended.returncode, json.loads(ended.stderr)["error"]) == (1, "broker_unavailable")


def test_a_file_without_lines_has_no_answers(folder: Path, batch: Batch) -> None:
    (folder / "in.jsonl").write_text("\n \n")

    ended = batch()

    assert (ended.returncode, json.loads(ended.stdout)["lines"]) == (0, 0)
    assert (folder / "out.jsonl").read_bytes() == b""


@needs_redis_server
def test_a_producer_s_rights_are_enough(folder: Path, batch: Batch, tmp_path: Path) -> None:
    # given: lines that need all that a line can need
    lines = [
        raw_line("c1", completion("x", n=2)),
        raw_line("c2", completion("y", store=False)),
        raw_line("c3", {"model": "null", "input": "Hi", "max_output_tokens": 2}, RESPONSES),
    ]
    (folder / "in.jsonl").write_bytes(b"\n".join(lines))
    with (
        guarded_server(tmp_path) as server,
        serving("w", url("worker", server.port), queue=QUEUE),
        redis.Redis.from_url(server.url, protocol=2) as admin,
    ):
        # when
        ended = batch("--redis-url", url("producer", server.port), "--queue", QUEUE)
        # then
        assert ended.returncode == 0, ended.stderr
        assert [entry["object"] for entry in admin.acl_log()] == []
