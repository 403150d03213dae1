"""Where the bytes of files lie: in a folder, and in what fsspec has a driver for."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rose.errors import ConfigurationError, FileGone, StorageUnavailable
from rose_gateway.storage.file_store import CHUNK_BYTES, FileStore, default_folder

PATH = "batches/batch-1/output-000001-3.jsonl"


@pytest.fixture(params=["folder", "objects"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FileStore]:
    """A folder, and fsspec's objects in memory."""
    url = str(tmp_path / "made" / "late") if request.param == "folder" else f"memory:/{tmp_path}"
    store = FileStore(url)
    yield store
    await store.aclose()


async def chunks(*data: bytes) -> AsyncIterator[bytes]:
    for chunk in data:
        yield chunk


async def content(store: FileStore, path: str, offset: int = 0) -> bytes:
    return b"".join([chunk async for chunk in store.read(path, offset=offset)])


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


async def test_what_was_written_is_read(store: FileStore) -> None:
    assert await store.write(PATH, chunks(b"ab", b"", b"cd")) == 4

    assert await content(store, PATH) == b"abcd"
    assert await content(store, PATH, offset=3) == b"d"
    assert await content(store, PATH, offset=9) == b""
    # and nothing is content too, which replaces what was there
    assert await store.write(PATH, chunks()) == 0
    assert await content(store, PATH) == b""


async def test_large_content_comes_in_chunks(store: FileStore) -> None:
    data = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"end"
    pieces = (data[start : start + 70_000] for start in range(0, len(data), 70_000))

    assert await store.write(PATH, chunks(*pieces)) == len(data)

    read = [chunk async for chunk in store.read(PATH)]
    assert b"".join(read) == data
    assert max(map(len, read)) <= CHUNK_BYTES


async def test_what_is_deleted_is_gone(store: FileStore) -> None:
    await store.write(PATH, chunks(b"ab"))
    await store.delete(PATH)
    await store.delete(PATH)  # again: no error

    with pytest.raises(FileGone):
        await content(store, PATH)


async def test_reading_may_stop_early(store: FileStore) -> None:
    await store.write(PATH, chunks(b"x" * 2 * CHUNK_BYTES))
    reading = store.read(PATH)
    assert len(await anext(reading)) == CHUNK_BYTES

    await reading.aclose()

    with pytest.raises(StopAsyncIteration):
        await anext(reading)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../b", "a//b", "", ".hidden", "a/b\n"])
async def test_a_path_cannot_leave_the_store(store: FileStore, path: str) -> None:
    with pytest.raises(ValueError, match="no path"):
        await store.write(path, chunks(b"x"))
    with pytest.raises(ValueError, match="no path"):
        await content(store, path)


async def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    # given
    store = FileStore(str(tmp_path))
    await store.write(PATH, chunks(b"first"))

    async def failing() -> AsyncIterator[bytes]:
        yield b"x" * 2 * CHUNK_BYTES
        raise LookupError("the client has gone")

    # when
    with pytest.raises(LookupError):
        await store.write(PATH, failing())
    # then
    assert await content(store, PATH) == b"first"
    assert names(tmp_path) == [PATH.split("/")[-1]]
    await store.aclose()


async def test_a_write_that_is_cancelled_leaves_what_was_there(tmp_path: Path) -> None:
    # given: a write in the middle
    store = FileStore(str(tmp_path))
    await store.write(PATH, chunks(b"first"))
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * CHUNK_BYTES
            begun.set()
            await asyncio.sleep(0)

    writing = asyncio.create_task(store.write(PATH, endless()))
    await begun.wait()
    # when
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    # then
    assert await content(store, PATH) == b"first"
    assert names(tmp_path) == [PATH.split("/")[-1]]
    await store.aclose()


async def test_a_write_that_died_is_deleted_with_its_path(tmp_path: Path) -> None:
    # given: what a process that was killed has left
    store = FileStore(str(tmp_path))
    left = tmp_path / (PATH + ".part")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    # when
    await store.delete(PATH)
    # then: its folder went with it
    assert names(tmp_path) == []
    assert not left.parent.exists()
    await store.aclose()


async def test_others_may_not_look_into_the_folder(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "files"))
    await store.write(PATH, chunks(b"a prompt"))

    assert (tmp_path / "files").stat().st_mode & 0o077 == 0
    await store.aclose()


async def test_the_event_loop_never_waits_for_the_storage(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: a storage that says in which thread it is used
    used: set[int] = set()
    opened = store._filesystem.open

    def noting(*args, **kwargs):
        used.add(threading.get_ident())
        return opened(*args, **kwargs)

    monkeypatch.setattr(store._filesystem, "open", noting)
    # when
    await store.write(PATH, chunks(b"ab"))
    await content(store, PATH)
    # then
    assert used
    assert threading.get_ident() not in used


async def test_a_storage_that_cannot_be_used_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    store = FileStore(str(tmp_path / "file"))

    with pytest.raises(StorageUnavailable) as told:
        await store.write(PATH, chunks(b"ab"))

    assert str(tmp_path) not in str(told.value), "the place is nobody's business"
    assert str(tmp_path) in caplog.text
    await store.aclose()


@pytest.mark.parametrize("url", ["nowhere://x", "gs://bucket/prefix"])
def test_a_storage_without_a_driver_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="ROSE_GATEWAY_STORAGE"):
        FileStore(url)


def test_without_a_setting_files_are_the_users_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")

    assert default_folder() == "/data/roseinfer/files"
