"""A journal outlives its writer, and is read while it grows."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.chaos.journal import Journal, Tail, read, read_end, read_file

_WRITER = """
import sys
from pathlib import Path
from tests.chaos.journal import Journal
journal = Journal(Path(sys.argv[1]))
for number in range(10**9):
    journal.write(number, "ü\\n" * 20)
"""


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    # given
    path = tmp_path / "journal"
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)])
    tail = Tail(tmp_path, path.name)
    seen: list[Any] = []
    while len(seen) < 1000:
        seen += tail.new()
    # when
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    # then
    seen += tail.new()
    assert path.read_bytes().endswith(b"\n")
    assert [number for _, (number, _) in seen] == list(range(len(seen)))
    assert list(read(tmp_path, "*")) == seen


def test_half_a_line_waits_for_the_rest(tmp_path: Path) -> None:
    # given
    path = tmp_path / "journal"
    Journal(path).write(1, "one")
    tail = Tail(tmp_path, path.name)
    # when
    with path.open("a") as file:
        file.write('[2, "tw')
        file.flush()
        first = tail.new()
        file.write('o"]\n')
    # then
    assert first == [("journal", [1, "one"])]
    assert tail.new() == [("journal", [2, "two"])]
    assert tail.new() == []


def test_no_journal_has_no_entries(tmp_path: Path) -> None:
    assert list(read(tmp_path, "none")) == []
    assert read_file(tmp_path / "none") == read_end(tmp_path / "none", 100) == []


def test_a_tail_goes_on_where_another_was(tmp_path: Path) -> None:
    # given
    record = Journal(tmp_path / "journal")
    record.write("before")
    tail = Tail(tmp_path, "journal")
    tail.new()
    # when
    record.write("after")
    # then
    assert Tail(tmp_path, "journal", tail.offsets).new() == [("journal", ["after"])]


def test_the_end_of_a_journal_is_of_whole_entries(tmp_path: Path) -> None:
    # given
    record = Journal(tmp_path / "journal")
    for number in range(100):
        record.write(number)
    # then
    assert [n for _, (n,) in read_end(tmp_path / "journal", 16)] == [97, 98, 99]  # 5 bytes each
    assert read_end(tmp_path / "journal", 10_000) == read_file(tmp_path / "journal")
