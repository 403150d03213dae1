"""A file of fixed-size slots that the processes of one user share: a cache of bytes by their keys.

    header    format, owner's identity, geometry, checksum                      one page
    index     [sets][WAYS] entries: key, checksum of key and content, last use
    slots     [sets][WAYS], each of whole pages

As in a processor's cache, a key belongs to one set and lies in any of its ways; of a full set the
one goes that was used the longest time ago. So there is no list or table that a killed writer could
leave broken. A writer clears the entry, writes the slot and then publishes the entry; only one
writes in a set at a time. Readers take no lock: what they read counts if its checksum is that of
the entry, so a torn, damaged or overwritten slot is a miss.

Nothing is mapped: a file that somebody truncates, a full disk or a bad sector is then an OSError,
and not the end of the process.
"""

import fcntl
import hashlib
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rose.errors import ConfigurationError

KEY_BYTES = 32
WAYS = 16

_FORMAT = b"ROSEKV01"
_PAGE = 4096
_HEADER = struct.Struct(f"<8s{KEY_BYTES}sQQ")
_ENTRY = struct.Struct(f"<{KEY_BYTES}s{KEY_BYTES}sd")
_ENTRIES = np.dtype([("key", f"V{KEY_BYTES}"), ("checksum", f"V{KEY_BYTES}"), ("used", "<f8")])
_SET_BYTES = WAYS * _ENTRY.size
_NO_KEY = bytes(KEY_BYTES)
#: `preadv` takes no more at once.
_BUFFERS = 512
_OPEN_ATTEMPTS = 5
#: A start waits so long for a process that makes the file, and may be stopped meanwhile.
_MAKING_S = 10.0
_POLL_S = 0.05

Buffers = Sequence[bytes | bytearray | memoryview]


class Slot(NamedTuple):
    """A slot and what its entry says of it."""

    number: int
    key: bytes
    checksum: bytes


class SlotFile:
    """Not thread-safe, but for readers beside one writer. Everything may raise OSError.

    `evicted` counts entries that gave way to others, `damaged` those that were not what their
    checksum says.
    """

    def __init__(
        self,
        path: Path,
        identity: bytes,
        content_bytes: int,
        max_bytes: int,
        max_age_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the file, or make it: at once in its full size, at most `max_bytes`. A slot holds up
        to `content_bytes`. Content of another `identity` (32 bytes) is thrown away, and an entry
        that nobody has used for `max_age_s` counts as gone. A file that others use keeps its size.

        Raises ConfigurationError for a file that is, or may be read by, somebody else's, or if
        `max_bytes` has no room; OSError where there is no space for it, or where another process
        makes it and does not get done.
        """
        self.path, self._identity, self._clock = path, identity, clock
        self._max_age_s = max_age_s
        self.slot_bytes = slot_bytes(content_bytes)
        self.evicted = self.damaged = 0
        self._sets = self._wanted_sets(max_bytes)
        self._fd = self._open()

    def close(self) -> None:
        os.close(self._fd)

    @property
    def slots(self) -> int:
        return self._sets * WAYS

    # Reading

    def find(self, key: bytes) -> Slot | None:
        """The slot that is said to hold the key's content."""
        number = self._set_of(key)
        entries = self._read_set(number)
        way, rest = divmod(entries.find(key), _ENTRY.size)
        if way < 0 or rest:
            return None
        _, checksum, used = _ENTRY.unpack_from(entries, way * _ENTRY.size)
        return Slot(number * WAYS + way, key, checksum) if self._is_fresh(used) else None

    def read(self, slot: Slot, buffers: Sequence[bytearray | memoryview]) -> bool:
        """Fill `buffers` with the slot's content; False if it is not what was once written under
        its key. The buffers then hold anything."""
        offset, whole = self._slot_offset(slot.number), True
        for start in range(0, len(buffers), _BUFFERS):
            part = buffers[start : start + _BUFFERS]
            wanted = sum(map(len, part))
            whole = whole and os.preadv(self._fd, part, offset) == wanted
            offset += wanted
        if whole and _checksum(slot.key, buffers) == slot.checksum:
            return True
        self._discard(slot)
        return False

    def touch(self, slot: Slot) -> None:
        """It was used now."""
        used = struct.pack("<d", self._clock())
        os.pwrite(self._fd, used, self._entry_offset(slot.number) + 2 * KEY_BYTES)

    # Writing

    @contextmanager
    def writing(self, key: bytes) -> Iterator[int | None]:
        """The number of the slot to `fill` and `publish` for this key; None if the key is there, or
        another process writes in its set."""
        number = self._set_of(key)
        with self._locked(number) as locked:
            if not locked:
                yield None
                return
            known = self.find(key)
            if known is not None:
                self.touch(known)
            yield None if known is not None else self._cleared(number, key)

    def fill(self, slot: int, key: bytes, buffers: Buffers) -> bytes:
        """Write the content; returns the checksum to publish it with."""
        checksum = _checksum(key, buffers)
        offset = self._slot_offset(slot)
        for start in range(0, len(buffers), _BUFFERS):
            part = buffers[start : start + _BUFFERS]
            offset += _written(os.pwritev(self._fd, part, offset), sum(map(len, part)))
        return checksum

    def publish(self, slot: int, key: bytes, checksum: bytes) -> None:
        self._write_entry(slot, _ENTRY.pack(key, checksum, self._clock()))

    def sweep(self) -> int:
        """Overwrite content that is too old with zeros; returns how many slots hold any."""
        raw = os.pread(self._fd, self._sets * _SET_BYTES, _PAGE)
        entries = np.frombuffer(raw[: len(raw) // _SET_BYTES * _SET_BYTES], _ENTRIES)
        now = self._clock()
        fresh = np.abs(now - entries["used"]) <= self._max_age_s  # of NaN too: False
        taken = entries["key"] != np.void(_NO_KEY)
        for slot in np.flatnonzero(taken & ~fresh).tolist():
            with self._locked(slot // WAYS) as locked:
                entry = os.pread(self._fd, _ENTRY.size, self._entry_offset(slot))
                if locked and not self._is_fresh(_ENTRY.unpack(entry)[2]):
                    os.pwrite(self._fd, bytes(self.slot_bytes), self._slot_offset(slot))
                    self._write_entry(slot, bytes(_ENTRY.size))
        return int((taken & fresh).sum())

    def _cleared(self, number: int, key: bytes) -> int:
        """A way of the set without an entry: that of an old or torn entry of the same key, which
        would be found first, a free one, or the one of the oldest entry. The set is locked."""
        first = number * WAYS
        last_uses = []
        for known, _, used in _ENTRY.iter_unpack(self._read_set(number)):
            if known == key:
                last_uses.append(-2.0)
            elif known == _NO_KEY:
                last_uses.append(-1.0)
            else:
                last_uses.append(used if self._is_fresh(used) else 0.0)
        way = min(range(WAYS), key=last_uses.__getitem__)
        self.evicted += last_uses[way] > 0
        if last_uses[way] != -1.0:
            self._write_entry(first + way, bytes(_ENTRY.size))
        return first + way

    def _read_set(self, number: int) -> bytes:
        entries = os.pread(self._fd, _SET_BYTES, self._entry_offset(number * WAYS))
        if len(entries) < _SET_BYTES:
            raise OSError(f"{self.path} was cut off while it was used")
        return entries

    def _discard(self, slot: Slot) -> None:
        """It did not hold what its entry says. Where that has not changed meanwhile it is damaged,
        and the entry goes."""
        with self._locked(slot.number // WAYS) as locked:
            offset = self._entry_offset(slot.number)
            same = os.pread(self._fd, 2 * KEY_BYTES, offset) == slot.key + slot.checksum
            if locked and same:
                self.damaged += 1
                self._write_entry(slot.number, bytes(_ENTRY.size))

    def _write_entry(self, slot: int, entry: bytes) -> None:
        _written(os.pwrite(self._fd, entry, self._entry_offset(slot)), len(entry))

    def _is_fresh(self, used: float) -> bool:
        """Clocks may differ, and a damaged time may be anything, also no number."""
        return abs(self._clock() - used) <= self._max_age_s

    @contextmanager
    def _locked(self, number: int) -> Iterator[bool]:
        """Whether this process alone writes in the set; a killed one loses its locks."""
        offset = self._entry_offset(number * WAYS)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _SET_BYTES, offset)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, _SET_BYTES, offset)

    # Where things lie

    def _wanted_sets(self, max_bytes: int) -> int:
        sets = (max_bytes - 2 * _PAGE) // (WAYS * self.slot_bytes + _SET_BYTES)
        if sets < 1:
            least = 2 * _PAGE + WAYS * self.slot_bytes + _SET_BYTES
            raise ConfigurationError(
                f"the second tier of the cache has {max_bytes} bytes for {self.path.suffix[1:]}, "
                f"and {WAYS} of them take {least}: give it more, or 0 for none"
            )
        return int(sets)

    def _set_of(self, key: bytes) -> int:
        return int.from_bytes(key[:8], "little") % self._sets

    def _entry_offset(self, slot: int) -> int:
        return _PAGE + slot * _ENTRY.size

    def _slot_offset(self, slot: int) -> int:
        return self._index_end(self._sets) + slot * self.slot_bytes

    def _index_end(self, sets: int) -> int:
        return -(-(_PAGE + sets * _SET_BYTES) // _PAGE) * _PAGE

    # Opening

    def _open(self) -> int:
        """A file in use has a shared lock, and whoever makes one an exclusive lock."""
        for _ in range(_OPEN_ATTEMPTS):
            fd = _open_own(self.path)
            try:
                if _flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB) and self._read_sets(fd) != self._sets:
                    self._make(fd)
                self._share(fd)
                sets = self._read_sets(fd)
                if sets is not None and os.fstat(fd).st_nlink:
                    self._sets = sets
                    return fd
                self.path.unlink(missing_ok=True)  # damaged, and others still use it
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        raise OSError(f"{self.path} was damaged {_OPEN_ATTEMPTS} times while it was opened")

    def _share(self, fd: int) -> None:
        waited_from = time.monotonic()
        while not _flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB):
            if time.monotonic() - waited_from > _MAKING_S:
                raise OSError(f"another process has not made {self.path} in {_MAKING_S:g} s")
            time.sleep(_POLL_S)

    def _make(self, fd: int) -> None:
        """Its header comes last: without one it is made again."""
        os.ftruncate(fd, 0)
        try:
            os.posix_fallocate(fd, 0, self._slot_offset(self.slots))
        except OSError:
            os.ftruncate(fd, 0)
            raise
        os.pwrite(fd, self._header(self._sets), 0)

    def _header(self, sets: int) -> bytes:
        header = _HEADER.pack(_FORMAT, self._identity, self.slot_bytes, sets)
        return header + hashlib.sha256(header).digest()

    def _read_sets(self, fd: int) -> int | None:
        """How many sets the file has; None if it is not such a file."""
        header = os.pread(fd, _HEADER.size + KEY_BYTES, 0)
        if len(header) < _HEADER.size + KEY_BYTES:
            return None
        *_, sets = _HEADER.unpack_from(header)
        end = self._index_end(sets) + sets * WAYS * self.slot_bytes
        return int(sets) if header == self._header(sets) and os.fstat(fd).st_size == end else None


def slot_bytes(content_bytes: int) -> int:
    return -(-content_bytes // _PAGE) * _PAGE


def own_folder(path: Path) -> Path:
    """The folder, made if need be. Raises ConfigurationError if it is not the user's alone."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_own(path, path.lstat(), stat.S_ISDIR, "chmod 700")
    return path


def remove_unused(folder: Path, own: Sequence[SlotFile], keep_bytes: int, max_age_s: float) -> None:
    """Of the files beside one's `own` that nobody has open, remove those not written for so long,
    and the oldest ones until all together have at most `keep_bytes`."""
    paths = {file.path for file in own}
    suffixes = {path.suffix for path in paths}
    known = []
    for path in folder.iterdir():
        if path.suffix in suffixes and path not in paths:
            with suppress(FileNotFoundError):  # another process removes it
                status = path.lstat()
                known.append((status.st_mtime, status.st_size, path))
    kept = sum(path.stat().st_size for path in paths)
    for written_at, size, path in sorted(known, reverse=True):
        kept += size
        if kept <= keep_bytes and time.time() - written_at <= max_age_s:
            continue
        fd = _open_own(path)
        try:
            if _flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def _open_own(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    if os.path.lexists(path):
        _check_own(path, path.lstat(), stat.S_ISREG, "chmod 600")
    try:
        fd = os.open(path, flags, 0o600)
    except PermissionError as error:
        raise ConfigurationError(f"{path} is somebody else's: {error.strerror}") from None
    try:
        _check_own(path, os.fstat(fd), stat.S_ISREG, "chmod 600")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_own(
    path: Path, status: os.stat_result, is_kind: Callable[[int], bool], command: str
) -> None:
    if not is_kind(status.st_mode):
        raise ConfigurationError(f"{path} is a {stat.filemode(status.st_mode)}: remove it")
    if status.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{path} belongs to the user {status.st_uid}, and this is {os.geteuid()}: what others "
            "may write or read is not used; choose another folder"
        )
    if status.st_mode & 0o077:
        raise ConfigurationError(
            f"others may use {path} ({stat.filemode(status.st_mode)}), which holds prompts: "
            f"{command} {path}, or remove it"
        )


def _flock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return False
    return True


def _checksum(key: bytes, buffers: Buffers) -> bytes:
    digest = hashlib.sha256(key)
    for buffer in buffers:
        digest.update(buffer)
    return digest.digest()


def _written(count: int, wanted: int) -> int:
    if count != wanted:
        raise OSError(f"only {count} of {wanted} bytes were written")
    return count
