"""The second tier of the prefix cache: blocks and states in files that outlive the process.

Whatever becomes findable in the cache is also written to a file, by a thread of its own, and a
request reads from there what the cache lacks of its beginning. All workers of a user on a machine
share the files. An entry is named by a hash of the identity of the cache's bits, the salt, the
entry before it and its own tokens:

    root = H(identity, salt)      key(i) = H(root, key(i - 1), tokens(i))      key(-1) = root

Root, parent's key and tokens also lie in the slot and are compared with the wanted ones before its
content is used. States of layers that have one are in a second file, under the keys of the blocks
behind which they are.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
import time
import weakref
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from rose.engine_records import SecondTierStats
from roseinfer.kv_cache.slot_file import KEY_BYTES, SlotFile, own_folder, remove_unused, slot_bytes

_logger = logging.getLogger(__name__)

_SWEEP_S = 60.0
#: At the end of the process for what still waits to be written.
_FLUSH_S = 2.0


class Pieces(Protocol):
    """The memory of blocks, or of states."""

    size_bytes: int
    """of one"""

    def __call__(self, number: int) -> list[memoryview]:
        """Of the one with this number."""


@dataclass(frozen=True, slots=True)
class SecondTierOptions:
    """At most `max_bytes` of disk in `folder`, for each model that is in use; None is a folder in
    the user's cache. Entries that nobody used for `max_age_s` are gone."""

    max_bytes: int
    folder: Path | None = None
    max_age_s: float = 86_400.0


class Record(NamedTuple):
    """What an entry is named by, and what lies before its content."""

    key: bytes
    header: bytes
    """root, parent's key and tokens"""


@dataclass(frozen=True, slots=True)
class _Store:
    """Entries of one size."""

    file: SlotFile
    pieces: Pieces


class _Job(NamedTuple):
    store: _Store
    number: int
    record: Record


class SecondTier:
    """The engine's thread calls everything but `stats`, which any thread may."""

    def __init__(
        self,
        options: SecondTierOptions,
        identity: bytes,
        block_size: int,
        blocks: Pieces,
        states: Pieces | None = None,
        blocks_to_a_state: int = 0,
    ) -> None:
        """`identity` (32 bytes) stands for all on which a block's bits depend.

        Raises ConfigurationError for folders or files that are not the user's alone, and OSError
        where they cannot be made.
        """
        self.folder = own_folder(options.folder or default_folder())
        self._identity, self.block_size = identity, block_size
        for_states = 0
        if states is not None:
            state, block = (slot_bytes(self._content_bytes(kind)) for kind in (states, blocks))
            for_states = options.max_bytes * state // (state + blocks_to_a_state * block)
        self._states: _Store | None = None
        with ExitStack() as opened:
            self._blocks = self._store(options, "blocks", blocks, options.max_bytes - for_states)
            opened.callback(self._blocks.file.close)
            if states is not None:
                self._states = self._store(options, "states", states, for_states)
                opened.callback(self._states.file.close)
            stores = [store for store in (self._blocks, self._states) if store is not None]
            files = [store.file for store in stores]
            remove_unused(self.folder, files, options.max_bytes, options.max_age_s)
            self._writer = _Writer(stores)
            opened.pop_all()
        self._query_tokens = self._hit_tokens = 0
        weakref.finalize(self, self._writer.close)

    def _store(
        self, options: SecondTierOptions, kind: str, pieces: Pieces, max_bytes: int
    ) -> _Store:
        path = self.folder / f"{self._identity.hex()[:32]}.{kind}"
        size = self._content_bytes(pieces)
        file = SlotFile(path, self._identity, size, max_bytes, options.max_age_s)
        return _Store(file, pieces)

    def _content_bytes(self, pieces: Pieces) -> int:
        """With the header of a record."""
        return 2 * KEY_BYTES + 4 * self.block_size + pieces.size_bytes

    @property
    def capacity_tokens(self) -> int:
        return self._blocks.file.slots * self.block_size

    def record(self, salt: str, before: Record | None, tokens: Sequence[int]) -> Record:
        """Of a block that holds `tokens`, behind the block of `before`."""
        if before is None:
            root = hashlib.sha256(self._identity + salt.encode(errors="surrogatepass")).digest()
            parent = root
        else:
            root, parent = before.header[:KEY_BYTES], before.key
        header = root + parent + array("i", tokens).tobytes()
        return Record(hashlib.sha256(header).digest(), header)

    # Writing

    def save_block(self, block: int, record: Record) -> None:
        """Write the block when there is time, unless it is dropped before."""
        self._writer.add(_Job(self._blocks, block, record))

    def drop_block(self, block: int) -> None:
        """The block will hold something else."""
        self._writer.cancel(self._blocks, block)

    def save_state(self, slot: int, record: Record) -> None:
        if self._states is not None:
            self._writer.add(_Job(self._states, slot, record))

    def drop_state(self, slot: int) -> None:
        if self._states is not None:
            self._writer.cancel(self._states, slot)

    # Reading

    def load(self, records: Sequence[Record], blocks: Sequence[int], state: int) -> int:
        """Read the entries of as many of `records` as there are, one after another, into `blocks`;
        returns how many. Of a model with states, up to the last one behind which there is a state,
        which is read into the slot `state`; it and further blocks may be overwritten in any case.
        """
        self._query_tokens += len(records) * self.block_size
        try:
            count = self._load(records, blocks, state)
        except OSError as error:
            self._writer.give_up(error)
            count = 0
        self._hit_tokens += count * self.block_size
        return count

    def _load(self, records: Sequence[Record], blocks: Sequence[int], state: int) -> int:
        if self._writer.broken:
            return 0
        count = len(records)
        if self._states is not None:
            count = self._stateful(self._states, records)
            if not count or not _read(self._states, state, records[count - 1]):
                return 0
        loaded = 0
        while loaded < count and _read(self._blocks, blocks[loaded], records[loaded]):
            loaded += 1
        return loaded if self._states is None or loaded == count else 0

    def _stateful(self, states: _Store, records: Sequence[Record]) -> int:
        """How many records have blocks without a gap, and a state behind the last of them."""
        count = 0
        for number, record in enumerate(records, 1):
            if self._blocks.file.find(record.key) is None:
                break
            if states.file.find(record.key) is not None:
                count = number
        return count

    def stats(self) -> SecondTierStats:
        writer, files = self._writer, [store.file for store in self._writer.stores]
        return SecondTierStats(
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            held_bytes=writer.held_bytes,
            written_bytes=writer.written_bytes,
            written=writer.written,
            dropped=writer.dropped,
            evicted=sum(file.evicted for file in files),
            damaged=sum(file.damaged for file in files),
        )

    def flush(self, limit_s: float) -> bool:
        """Wait until nothing waits to be written, at most so long; whether that is so."""
        return self._writer.flush(limit_s)


def _read(store: _Store, number: int, record: Record) -> bool:
    slot = store.file.find(record.key)
    if slot is None:
        return False
    header = bytearray(len(record.header))
    if not store.file.read(slot, [header, *store.pieces(number)]) or header != record.header:
        return False
    store.file.touch(slot)
    return True


class _Writer:
    """The thread that writes, and what it has to write.

    What waits to be written, or is just being written, may be cancelled: then it is not published.
    So the engine never waits for the disk.
    """

    def __init__(self, stores: Sequence[_Store]) -> None:
        self.stores = stores
        self.held_bytes = self.written_bytes = self.written = self.dropped = 0
        self.broken = False
        self._jobs: dict[tuple[int, int], _Job] = {}  # by store and number, the oldest first
        self._current: tuple[int, int] | None = None
        self._closing = False
        self._lock = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="second tier", daemon=True)
        self._thread.start()

    def add(self, job: _Job) -> None:
        with self._lock:
            if not self.broken:
                self._jobs[_place(job.store, job.number)] = job
                self._lock.notify_all()

    def cancel(self, store: _Store, number: int) -> None:
        place = _place(store, number)
        with self._lock:
            if self._jobs.pop(place, None) is not None:
                self.dropped += 1
            if self._current == place:
                self._current = None
                self.dropped += 1

    def flush(self, limit_s: float) -> bool:
        with self._lock:
            return self._lock.wait_for(
                lambda: not self._jobs and self._current is None, timeout=limit_s
            )

    def close(self) -> None:
        """Write what waits, if that takes no longer than _FLUSH_S, and end."""
        self.flush(_FLUSH_S)
        with self._lock:
            self._closing = True
            self._jobs.clear()
            self._lock.notify_all()
        self._thread.join(_FLUSH_S)
        if not self._thread.is_alive():
            for store in self.stores:
                store.file.close()

    def give_up(self, error: OSError) -> None:
        """The files cannot be used: nothing is read or written any more."""
        with self._lock:
            if not self.broken:
                _logger.error("the second tier of the cache is off from now on: %s", error)
            self.broken = True
            self._jobs.clear()

    def _run(self) -> None:
        swept_at = -math.inf
        try:
            while not self._closing:
                if time.monotonic() - swept_at >= _SWEEP_S:
                    self._sweep()
                    swept_at = time.monotonic()
                job = self._next()
                if job is not None:
                    self._write(job)
        except OSError as error:
            self.give_up(error)
        with self._lock:
            self._current = None
            self._lock.notify_all()

    def _next(self) -> _Job | None:
        with self._lock:
            if not self._jobs:
                self._lock.wait(_SWEEP_S)
            self._current = next(iter(self._jobs), None)
            return None if self._current is None else self._jobs.pop(self._current)

    def _write(self, job: _Job) -> None:
        file, key = job.store.file, job.record.key
        evicted = file.evicted
        with file.writing(key) as slot:
            if slot is not None:
                header = memoryview(job.record.header)
                checksum = file.fill(slot, key, [header, *job.store.pieces(job.number)])
                self._publish(job, slot, checksum)
                self.held_bytes += file.slot_bytes * (file.evicted == evicted)
        with self._lock:
            self._current = None
            self._lock.notify_all()

    def _publish(self, job: _Job, slot: int, checksum: bytes) -> None:
        """Unless the engine has begun to write something else to its memory."""
        with self._lock:
            if self._current is None:
                return
            job.store.file.publish(slot, job.record.key, checksum)
        self.written += 1
        self.written_bytes += job.store.file.slot_bytes

    def _sweep(self) -> None:
        self.held_bytes = sum(s.file.sweep() * s.file.slot_bytes for s in self.stores)


def _place(store: _Store, number: int) -> tuple[int, int]:
    return id(store), number


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "roseinfer", "second-tier")
