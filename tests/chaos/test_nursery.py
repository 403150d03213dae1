"""A fork is a process like any other: it dies, says how, and does not outlive the harness."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.a_context import a_context
from tests.chaos.nursery import Nursery
from tests.support.bench import wait_until


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery(["subscriber"]) as nursery:
        yield nursery


def context(folder: Path) -> str:
    return a_context(folder).model_dump_json()


def test_how_a_process_ended_is_known(nursery: Nursery, tmp_path: Path) -> None:
    # given
    child = nursery.fork("subscriber", context(tmp_path), tmp_path / "log")
    wait_until((tmp_path / "recalled-0.json").exists)
    assert child.poll() is None
    # when
    child.kill()
    # then
    assert child.wait() == -signal.SIGKILL
    assert child.poll() == -signal.SIGKILL


def test_what_goes_wrong_is_in_its_log(nursery: Nursery, tmp_path: Path) -> None:
    # when
    child = nursery.fork("subscriber", "no context", tmp_path / "log")
    # then
    assert child.wait() == 1
    assert "ValidationError" in (tmp_path / "log").read_text()


def test_nobody_outlives_the_harness(tmp_path: Path) -> None:
    # given
    with Nursery(["subscriber"]) as nursery:
        child = nursery.fork("subscriber", context(tmp_path), tmp_path / "log")
        wait_until((tmp_path / "recalled-0.json").exists)
        # when: as its death would, leaving closes the pipe that all of them watch
    # then
    assert child.wait() == 1
