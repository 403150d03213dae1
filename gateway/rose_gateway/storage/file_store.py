"""The content of files, in a folder or an object store."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO, Any, TypeVar

import fsspec
import platformdirs
from fsspec.implementations.local import LocalFileSystem

from rose.errors import ConfigurationError, FileGone, RoseError, StorageUnavailable
from rose.threads import started_pool

T = TypeVar("T")

log = logging.getLogger("rose.gateway")

CHUNK_BYTES = 1024 * 1024
#: What object stores take at a time: S3's least, since each upload holds as much in memory.
_BLOCK_BYTES = 5 * 1024 * 1024
_THREADS = 8
_TEMPORARY = ".part"

_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


def default_folder() -> str:
    return str(platformdirs.user_data_path("roseinfer") / "files")


class FileStore:
    """Paths are relative, of letters, digits, `_`, `.` and `-`; one writer a path at a time."""

    def __init__(self, url: str | None = None) -> None:
        """`url`: a folder or a URL of fsspec; the default folder if not given. Nothing is created
        before the first write.

        Raises: ConfigurationError
        """
        url = url or default_folder()
        try:
            self._filesystem, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(
                f"ROSE_GATEWAY_STORAGE: files cannot be kept at {url!r}: {error}"
            ) from None
        self._root: str = root.rstrip("/")
        self._threads = started_pool(_THREADS, "rose-files")

    async def aclose(self) -> None:
        """Once nobody reads or writes any more."""
        await asyncio.to_thread(self._threads.shutdown)

    async def write(self, path: str, chunks: AsyncIterator[bytes]) -> int:
        """What is at this path afterwards is either all of it or what was there before. Returns how
        many bytes that is.

        Raises: StorageUnavailable, and what `chunks` raises.
        """
        target = self._target(path)
        size = 0
        try:
            async for block in _blocks(chunks):
                await self._run(target.write, block)
                size += len(block)
            await self._run(target.commit)
        except BaseException:
            # A write that was cancelled may still go on in its thread; this waits for it there.
            await self._run(target.discard)
            raise
        return size

    async def read(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Chunks of at most CHUNK_BYTES. Close it if you do not read to the end.

        Raises: FileGone, StorageUnavailable
        """
        source = _Source(self._filesystem, self._full(path), offset)
        try:
            while chunk := await self._run(source.read):
                yield chunk
        finally:
            await self._run(source.close)

    async def delete(self, path: str) -> None:
        """No error where there is nothing. Raises: StorageUnavailable"""
        await self._run(self._target(path).delete)

    def _target(self, path: str) -> _Target:
        if isinstance(self._filesystem, LocalFileSystem):
            return _LocalFile(Path(self._full(path)), Path(self._root))
        return _StoredObject(self._filesystem, self._full(path))

    def _full(self, path: str) -> str:
        if not _PATH.fullmatch(path):
            raise ValueError(f"{path!r} is no path of the store's")
        return f"{self._root}/{path}"

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        """Raises: StorageUnavailable, FileGone"""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, call, *args)
        except RoseError:
            raise
        except Exception as error:  # every driver has errors of its own
            log.exception("the storage of files failed")
            raise StorageUnavailable(
                "the storage of files cannot be used; the server's log says why"
            ) from error


class _Target(ABC):
    """One path that is written. It holds all of it after `commit`, and before what was there."""

    def __init__(self) -> None:
        self._file: Any = None
        self._lock = Lock()

    def write(self, data: bytes) -> None:
        with self._lock:
            self._opened().write(data)

    def commit(self) -> None:
        """In the storage when it returns."""
        with self._lock:
            self._commit(self._opened())
            self._file = None

    def discard(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                self._discard(file)

    def _opened(self) -> Any:
        if self._file is None:
            self._file = self._open()
        return self._file

    @abstractmethod
    def delete(self) -> None: ...

    @abstractmethod
    def _open(self) -> Any: ...

    @abstractmethod
    def _commit(self, file: Any) -> None: ...

    @abstractmethod
    def _discard(self, file: Any) -> None: ...


class _LocalFile(_Target):
    """Written beside its place, then moved there."""

    def __init__(self, path: Path, root: Path) -> None:
        super().__init__()
        self._path = path
        self._root = root
        self._temporary = path.with_name(path.name + _TEMPORARY)

    def delete(self) -> None:
        self._temporary.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        if self._path.parent.parent != self._root:
            with suppress(OSError):  # it is not empty
                self._path.parent.rmdir()

    def _open(self) -> IO[bytes]:
        for _ in range(2):
            # Somebody may have just deleted the last file of the folder, and the folder.
            with suppress(FileNotFoundError):
                return self._open_temporary()
        return self._open_temporary()

    def _open_temporary(self) -> IO[bytes]:
        # Others may not look into it: files hold prompts.
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return self._temporary.open("wb")

    def _commit(self, file: IO[bytes]) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._temporary.replace(self._path)
        _sync_folder(self._path.parent)

    def _discard(self, file: IO[bytes]) -> None:
        file.close()
        self._temporary.unlink(missing_ok=True)


class _StoredObject(_Target):
    """It is there when it is closed, and not before."""

    def __init__(self, filesystem: Any, path: str) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._path = path

    def delete(self) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.rm_file(self._path)

    def _open(self) -> Any:
        try:
            return self._open_object()
        except FileNotFoundError:  # it has folders, as SFTP does
            self._filesystem.makedirs(self._path.rpartition("/")[0], exist_ok=True)
            return self._open_object()

    def _open_object(self) -> Any:
        return self._filesystem.open(self._path, "wb", block_size=_BLOCK_BYTES)

    def _commit(self, file: Any) -> None:
        file.close()

    def _discard(self, file: Any) -> None:
        if hasattr(file, "discard"):
            file.discard()
        with suppress(AttributeError):  # its `closed` is its own
            file.closed = True  # or its end would finish the upload


class _Source:
    """Reads from one path."""

    def __init__(self, filesystem: Any, path: str, offset: int) -> None:
        self._filesystem = filesystem
        self._path = path
        self._offset = offset
        self._file: Any = None
        self._closed = False
        self._lock = Lock()

    def read(self) -> bytes:
        """Raises: FileGone"""
        with self._lock:
            if self._closed:
                return b""
            if self._file is None:
                self._file = self._open()
            data: bytes = self._file.read(CHUNK_BYTES)
            return data

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()

    def _open(self) -> Any:
        try:
            file = self._filesystem.open(self._path, "rb", block_size=_BLOCK_BYTES)
        except FileNotFoundError:
            raise FileGone("the storage does not have the content of this file any more") from None
        if self._offset:
            file.seek(self._offset)
        return file


def _sync_folder(folder: Path) -> None:
    """A name is on the disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in blocks of about CHUNK_BYTES: each costs a change of thread."""
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
