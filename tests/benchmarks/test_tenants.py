"""The benchmark of tenants runs and says what it measured; how fast decides nothing here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.board import Board
from benchmarks.tenants.cases.shares import Setting, Shares
from benchmarks.tenants.fairness import jain, least_jain
from tests.conftest import needs_redis_server

_ROOT = Path(__file__).parents[2]


def test_jains_index() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([0.0, 0.0]) == 0.0


def test_the_worst_window_counts() -> None:
    # given two tenants in turns of two seconds each, one of twice the weight
    tokens = {"ann": [10, 10, 0, 0, 10, 10], "bob": [0, 0, 5, 5, 0, 0]}
    weights = {"ann": 2.0, "bob": 1.0}
    # then
    assert least_jain(tokens, weights, 4) == pytest.approx(1.0)
    assert least_jain(tokens, weights, 2) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="6 intervals have no window of 7"):
        least_jain(tokens, weights, 7)


@needs_redis_server
def test_shares_are_fair() -> None:
    # given: no clock decides, time is counted in steps
    board = Board("shares")
    case = Shares((Setting(6, 12),), seconds=90, windows_s=((60, 0.95),))
    # when
    case.round(board, 0)
    case.judge(board)
    # then
    assert [check for check in board.checks if not check.met] == []


@needs_redis_server
def test_the_benchmark_measures_tenants(tmp_path: Path) -> None:
    # when
    data = tmp_path / "data.json"
    command = [sys.executable, "-m", "benchmarks.tenants", "--scale", "tiny", "--json", str(data)]
    subprocess.run([*command, "--only", "newcomer,fetching,memory"], cwd=_ROOT, check=True)
    # then
    cases = json.loads(data.read_text())["cases"]
    assert set(cases) == {"newcomer", "fetching", "memory"}
    rows = [row for case in cases.values() for row in case["rows"]]
    assert all(len(row["rounds"]) == 1 for row in rows)
    assert cases["newcomer"]["checks"]
