"""Contents of a slot file, and processes that write them and may be killed at any point of it."""

import hashlib
import os
import signal
import traceback
from pathlib import Path

from roseinfer.kv_cache.slot_file import SlotFile
from tests.support.children import Child

IDENTITY = bytes(range(32))
CONTENT_BYTES = 5000
#: Of two sets.
MAX_BYTES = 300_000


def open_file(path: Path, **changes: object) -> SlotFile:
    options = {
        "identity": IDENTITY,
        "content_bytes": CONTENT_BYTES,
        "max_bytes": MAX_BYTES,
        "max_age_s": 3600.0,
    }
    return SlotFile(path, **{**options, **changes})  # type: ignore[arg-type]


def key_of(number: int) -> bytes:
    return hashlib.sha256(f"key {number}".encode()).digest()


def content_of(number: int) -> bytes:
    return hashlib.shake_128(f"content {number}".encode()).digest(CONTENT_BYTES)


def write(file: SlotFile, number: int) -> bool:
    """In three pieces; False if it was there, or another process wrote beside it."""
    content, key = content_of(number), key_of(number)
    with file.writing(key) as slot:
        if slot is None:
            return False
        checksum = file.fill(slot, key, [content[:100], content[100:4000], content[4000:]])
        file.publish(slot, key, checksum)
    return True


def read(file: SlotFile, number: int) -> bytes | None:
    slot = file.find(key_of(number))
    content = bytearray(CONTENT_BYTES)
    parts = [memoryview(content)[:2000], memoryview(content)[2000:]]
    return bytes(content) if slot is not None and file.read(slot, parts) else None


class _Death:
    """Kills the process when it has written `at` bytes, in the middle of a call if need be."""

    def __init__(self, at: int) -> None:
        self._left = at
        self._pwrite = os.pwrite

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        part = data[: self._left]
        written = self._pwrite(fd, part, offset)
        self._left -= written
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    def pwritev(self, fd: int, buffers: list[bytes], offset: int) -> int:
        return self.pwrite(fd, b"".join(buffers), offset)


def _stopping(fd: int, offset: int, size: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    os.truncate(fd, offset + size)


def forked_writer(
    path: Path,
    first: int,
    count: int,
    dies_at: int | None = None,
    *,
    stops_while_it_makes: bool = False,
) -> Child:
    """Writes `count` contents; is killed when it has written so many bytes."""
    pid = os.fork()
    if pid == 0:
        try:
            if stops_while_it_makes:
                os.posix_fallocate = _stopping
            file = open_file(path)
            if dies_at is not None:
                death = _Death(dies_at)
                os.pwrite, os.pwritev = death.pwrite, death.pwritev  # type: ignore[assignment]
            for number in range(first, first + count):
                write(file, number)
        except BaseException:  # noqa: BLE001 - the child of a test must not go on as its parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return Child(pid)
