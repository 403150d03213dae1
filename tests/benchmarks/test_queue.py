"""The queue's benchmark runs and says what it measured; how fast decides nothing here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.board import Board, at_least
from benchmarks.queue.cases.compared import rate
from benchmarks.report import cells
from tests.conftest import needs_redis_server

_ROOT = Path(__file__).parents[2]


@needs_redis_server
def test_the_benchmark_measures_the_plain_loop_and_the_queue(tmp_path: Path) -> None:
    # when
    data = tmp_path / "data.json"
    command = [sys.executable, "-m", "benchmarks.queue", "--scale", "tiny", "--json", str(data)]
    subprocess.run([*command, "--only", "submit,drain,tokens,latency,paced"], cwd=_ROOT, check=True)
    # then
    result = json.loads(data.read_text())
    measured = {
        name: {row["contender"] for row in case["rows"]} for name, case in result["cases"].items()
    }
    assert measured["drain"] >= {"plain loop", "roseinfer"}
    assert measured["latency"] >= {"plain loop", "roseinfer"}
    assert measured["submit"] >= {"plain loop", "roseinfer", "roseinfer (sync client)"}
    assert measured["tokens"] >= {"plain loop", "plain loop, our events", "roseinfer"}
    assert measured["paced"] == {"worker", "Redis", "client", "all three"}
    rows = [row for case in result["cases"].values() for row in case["rows"]]
    assert all(len(row["rounds"]) == 1 and row["rounds"][0] > 0 for row in rows)
    assert all(case["checks"] for case in result["cases"].values())
    assert result["environment"]["command"].startswith("python -m benchmarks.queue")


def test_an_unknown_case_is_refused() -> None:
    # when
    command = [sys.executable, "-m", "benchmarks.queue", "--only", "drain,latancy"]
    run = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    # then
    assert run.returncode == 2
    assert "unknown latancy" in run.stderr


def test_ratios_are_taken_within_a_round() -> None:
    # given a machine that is ten times slower in the second of three rounds
    board = Board("speed", base="plain loop")
    for ours, plain in ((50.0, 100.0), (5.0, 10.0), (60.0, 100.0)):
        board.add("ours", {"jobs/s": ours})
        board.add("plain loop", {"jobs/s": plain})
    # when
    rows = ("jobs/s", "ours"), ("jobs/s", "plain loop")
    board.check_ratio("ours to plain", *rows, at_least(0.55))
    # then
    assert board.checks[0].reached == "0.50 (0.50 to 0.60)"
    assert not board.checks[0].met
    assert cells(board, rows[0]) == ["jobs/s", "ours", "50", "5", "60", "0.50"]


def test_a_drain_counts_what_finished_after_its_first_moment() -> None:
    assert rate([10.0, 10.0, 10.0, 11.0, 12.0, 12.0]) == pytest.approx(1.5)
