"""The log holds up nobody, and says what it has lost."""

import _thread
import io
import logging
import threading

import pytest

from rose.logs import BackgroundHandler
from tests.support.bench import wait_until


class Pipe(io.StringIO):
    """Of which the other end takes nothing until `read` is set, and which fails while `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.read = threading.Event()
        self.broken = False

    def write(self, text: str) -> int:
        self.read.wait()
        if self.broken:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


@pytest.fixture
def log(pipe: Pipe) -> logging.Logger:
    logger = logging.Logger("rose.test")
    logger.addHandler(BackgroundHandler(pipe))
    return logger


def test_lines_that_nobody_reads_are_counted_and_told_where_they_are_missing(
    log: logging.Logger, pipe: Pipe
) -> None:
    # given: one is being written, 10,000 wait
    for n in range(10_031):
        log.info("line %d", n)
        if n == 0:
            wait_until(log.handlers[0]._lines.empty)
    # when
    pipe.read.set()
    wait_until(lambda: "line 10000\n" in pipe.getvalue())
    log.info("last")
    log.handlers[0].flush()
    # then
    *_, before, told, last = pipe.getvalue().splitlines()
    assert before == "line 10000"
    assert told == "30 lines of the log are left out: nobody read them"
    assert last == "last"


def test_lines_that_could_not_be_written_are_counted(log: logging.Logger, pipe: Pipe) -> None:
    # given
    pipe.read.set()
    pipe.broken = True
    for _ in range(3):
        log.info("lost")
    log.handlers[0].flush()
    # when
    pipe.broken = False
    log.info("last")
    log.handlers[0].flush()
    # then
    told = "3 lines of the log are left out: they could not be written"
    assert pipe.getvalue().splitlines() == [told, "last"]


def test_nobody_waits_for_a_thread_that_cannot_be_started(
    log: logging.Logger, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: no memory for a thread, then one that ends before it runs anything
    pipe.read.set()
    attempts: list[str] = []

    def refuse(*_: object) -> int:
        attempts.append("refused")
        raise RuntimeError("can't start new thread")

    def end(*_: object) -> int:
        attempts.append("ended")
        return 1

    real = _thread.start_new_thread
    for start in (refuse, end, real):
        monkeypatch.setattr(_thread, "start_new_thread", start)
        monkeypatch.setattr(threading, "_start_new_thread", start)
        log.handlers[0]._try_again_at = 0.0
        # when
        log.info("a line")
    log.handlers[0].flush()
    # then
    assert attempts == ["refused", "ended"]
    assert pipe.getvalue().splitlines() == ["a line"] * 3


def test_a_wrong_call_costs_its_line(log: logging.Logger, pipe: Pipe) -> None:
    pipe.read.set()
    log.info("%d", "secret")
    log.handlers[0].flush()
    assert "rose.test: a line is wrong (TypeError)" in pipe.getvalue()
    assert "secret" not in pipe.getvalue()
