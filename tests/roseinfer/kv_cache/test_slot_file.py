"""Whatever happens to the file, whoever writes: what is read is what was written, or nothing."""

import errno
import os
import random
import signal
import time
from pathlib import Path

import pytest

from rose.errors import ConfigurationError
from roseinfer.kv_cache import slot_file
from roseinfer.kv_cache.slot_file import WAYS, SlotFile, own_folder, remove_unused
from tests.roseinfer.kv_cache.slot_writer import (
    CONTENT_BYTES,
    MAX_BYTES,
    content_of,
    forked_writer,
    key_of,
    open_file,
    read,
    write,
)

#: Key, checksum, and the time of its last use.
ENTRY_BYTES = 72


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.blocks"


def damage(path: Path, offset: int) -> None:
    """Flip a bit there; once more and it is as it was."""
    with path.open("rb") as file:
        file.seek(offset)
        (byte,) = file.read(1)
    put(path, offset, bytes([byte ^ 0x40]))


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_what_one_opening_writes_another_reads(path: Path) -> None:
    first, second = open_file(path), open_file(path)
    assert read(second, 1) is None
    assert write(first, 1)
    assert read(second, 1) == content_of(1)
    assert not write(second, 1), "it is there"
    assert path.stat().st_mode & 0o777 == 0o600
    first.close()
    second.close()
    assert read(open_file(path), 1) == content_of(1)


def test_bytes_are_bounded_and_what_is_used_stays(path: Path) -> None:
    # given
    file = open_file(path)
    assert file.slots == 2 * WAYS
    for number in range(200):
        write(file, number)
        # when one is read again and again
        assert read(file, 0) == content_of(0)
        slot = file.find(key_of(0))
        assert slot is not None
        file.touch(slot)
    # then
    held = [number for number in range(200) if read(file, number) is not None]
    assert held[0] == 0
    assert held[-1] == 199
    assert len(held) == file.slots == file.sweep()
    assert file.evicted == 200 - len(held)
    assert path.stat().st_blocks * 512 <= MAX_BYTES + 4096
    assert path.stat().st_size <= MAX_BYTES


def test_what_nobody_uses_is_gone_and_wiped(path: Path) -> None:
    # given two contents, of which one is used half an hour later
    now = time.time()
    file = open_file(path, clock=lambda: now)
    write(file, 1)
    write(file, 2)
    now += 1800
    slot = file.find(key_of(1))
    assert slot is not None
    file.touch(slot)
    # when another half an hour and a bit has passed
    now += 1801
    # then
    assert read(file, 1) == content_of(1)
    assert read(file, 2) is None
    assert content_of(2)[:64] in path.read_bytes()
    assert file.sweep() == 1
    assert content_of(2)[:64] not in path.read_bytes()
    assert content_of(1)[:64] in path.read_bytes()
    assert file.evicted == 0


@pytest.mark.parametrize("clock_is", [-100.0, 100.0])
def test_another_process_whose_clock_is_wrong_reads_it(path: Path, clock_is: float) -> None:
    write(open_file(path), 1)
    assert read(open_file(path, clock=lambda: time.time() + clock_is), 1) == content_of(1)


def test_no_flipped_byte_is_ever_used(path: Path) -> None:
    # given one entry
    file = open_file(path)
    write(file, 1)
    whole, slot = path.read_bytes(), file.find(key_of(1))
    assert slot is not None
    entry, content = whole.index(slot.key), whole.index(content_of(1))
    draw = random.Random(1)
    places = [*range(entry, entry + ENTRY_BYTES)]
    places += [content, content + CONTENT_BYTES - 1]
    places += draw.sample(range(content, content + CONTENT_BYTES), 100)
    used = 0
    for place in places:
        # when
        damage(path, place)
        # then
        found = read(file, 1)
        assert found in (None, content_of(1))
        assert found is None or entry + 64 <= place < entry + ENTRY_BYTES, "not a time of last use"
        used += found is not None
        damage(path, place)
        put(path, entry, whole[entry : entry + ENTRY_BYTES])
        assert read(file, 1) == content_of(1)
    assert used <= 8
    # and what is damaged is written anew
    damage(path, content + 77)
    assert read(file, 1) is None
    assert file.damaged > 0
    assert write(file, 1)
    assert read(file, 1) == content_of(1)


@pytest.mark.parametrize("full", [False, True], ids=["in an empty set", "over another content"])
def test_a_writer_that_is_killed_at_any_point_leaves_nothing_wrong(path: Path, full: bool) -> None:
    # given
    file = open_file(path)
    before = range(100, 400) if full else range(100, 101)
    for number in before:
        write(file, number)
    held = [number for number in before if read(file, number)]
    cleared = ENTRY_BYTES if full else 0
    whole = cleared + CONTENT_BYTES + ENTRY_BYTES
    for number, at in enumerate((1, 60, 73, 3000, whole - 73, whole - 71, whole - 10, whole)):
        # when
        died = forked_writer(path, number, 1, at)
        assert died.wait() == -signal.SIGKILL
        # then: all of it only when all was written
        assert read(file, number) == (content_of(number) if at == whole else None)
        # and the lock of the dead is nobody's, and its slot may be used again
        assert write(file, number) == (at != whole)
        assert read(file, number) == content_of(number)
    for number in held:
        assert read(file, number) in (None, content_of(number))
    assert file.damaged == 0


def test_processes_that_write_at_once_never_read_each_other_s_halves(path: Path) -> None:
    # given four that write the same keys, three times as many as there is room for
    file = open_file(path)
    processes = [forked_writer(path, first, 100) for first in (0, 0, 20, 40)]
    # when somebody reads them meanwhile
    seen = 0
    while any(process.poll() is None for process in processes):
        for number in range(140):
            content = read(file, number)
            assert content in (None, content_of(number))
            seen += content is not None
    # then
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    assert seen
    assert file.sweep() == file.slots


def test_a_file_that_is_cut_off_while_it_is_used_is_no_crash(path: Path) -> None:
    file = open_file(path)
    write(file, 1)
    slot = file.find(key_of(1))
    assert slot is not None
    os.truncate(path, path.stat().st_size - file.slots * file.slot_bytes)
    assert not file.read(slot, [bytearray(CONTENT_BYTES)])
    os.truncate(path, 5000)
    with pytest.raises(OSError, match="cut off"):
        file.find(key_of(1))
    file.close()
    assert read(open_file(path), 1) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: damage(path, 20),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(os.urandom(MAX_BYTES)),
        lambda path: os.truncate(path, 100),
    ],
    ids=["header", "empty", "foreign", "short"],
)
def test_a_foreign_or_damaged_file_is_made_anew(path: Path, spoil: object) -> None:
    # given: also beside somebody who still uses it
    file = open_file(path)
    write(file, 1)
    spoil(path)  # type: ignore[operator]
    # when
    other = open_file(path)
    # then
    assert read(other, 1) is None
    assert write(other, 1)
    assert read(open_file(path), 1) == content_of(1)


def test_content_of_another_identity_is_thrown_away(path: Path) -> None:
    file = open_file(path)
    write(file, 1)
    file.close()
    other = open_file(path, identity=bytes(32))
    assert read(other, 1) is None
    assert content_of(1)[:64] not in path.read_bytes()


def test_another_size_makes_the_file_anew_unless_it_is_in_use(path: Path) -> None:
    # given
    file = open_file(path)
    write(file, 1)
    # when another worker is told to have more
    beside = open_file(path, max_bytes=4 * MAX_BYTES)
    # then it takes what there is
    assert beside.slots == file.slots
    assert read(beside, 1) == content_of(1)
    # and when nobody else is there, what it was told
    file.close()
    beside.close()
    assert open_file(path, max_bytes=4 * MAX_BYTES).slots > 4 * file.slots


def test_nobody_waits_for_ever_for_one_that_is_stopped_while_it_makes_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(slot_file, "_MAKING_S", 0.2)
    stopped = forked_writer(path, 1, 1, stops_while_it_makes=True)
    os.waitpid(stopped.pid, os.WUNTRACED)
    # when / then
    try:
        with pytest.raises(OSError, match=f"another process has not made {path} in 0.2 s"):
            open_file(path)
    finally:
        stopped.send_signal(signal.SIGCONT)
    # and when it goes on
    assert stopped.wait() == 0
    assert read(open_file(path), 1) == content_of(1)


def test_a_file_that_has_no_room_for_a_set_is_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has 9999 bytes for blocks"):
        open_file(path, max_bytes=9999)


def test_another_user_s_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_file(path).close()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigurationError, match=f"belongs to the user {os.getuid()}"):
        open_file(path)
    with pytest.raises(ConfigurationError, match="belongs to the user"):
        own_folder(path.parent)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_may_use_is_refused(path: Path, mode: int) -> None:
    open_file(path).close()
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {path}"):
        open_file(path)


def test_what_is_no_file_is_refused(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    open_file(elsewhere).close()
    path.symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="is a l"):
        open_file(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigurationError, match="is a d"):
        open_file(path)


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder = own_folder(tmp_path / "a" / "b")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o750)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        own_folder(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ConfigurationError, match="is a l"):
        own_folder(tmp_path / "link")


def test_no_space_is_an_error_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(slot_file.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        open_file(path)
    assert path.stat().st_size == 0


def test_files_that_nobody_uses_give_way(tmp_path: Path) -> None:
    # given one's own, one in use, and three that nobody has open
    own, used = open_file(tmp_path / "own.blocks"), open_file(tmp_path / "used.blocks")
    for age_s, name in ((10, "new"), (20, "old"), (9000, "ancient")):
        open_file(tmp_path / f"{name}.blocks").close()
        then = time.time() - age_s
        os.utime(tmp_path / f"{name}.blocks", (then, then))
    (tmp_path / "note.txt").write_text("of somebody")
    # when
    remove_unused(tmp_path, [own], 3 * MAX_BYTES, 3600.0)
    # then: three fit, and one is too old
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"own.blocks", "used.blocks", "new.blocks", "note.txt"}
    assert isinstance(used, SlotFile)
