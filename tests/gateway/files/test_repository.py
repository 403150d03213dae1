"""What Redis knows of files."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from rose import transport
from rose.errors import FileNotFound, QuotaExceeded
from rose.protocol.keys import BulkKeys
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.access.authentication import Caller
from rose_gateway.files.files import Files
from rose_gateway.settings import KeyLimits
from rose_gateway.storage.file_repository import FileRecord, FileRepository, new_file_id
from rose_gateway.storage.file_store import FileStore
from rose_producer import ProducerSettings

OWNER = "0123456789ab"
OTHER = "ba9876543210"


@pytest.fixture
async def files(each_broker: EmbeddedBroker, tmp_path: Path) -> AsyncIterator[Files]:
    client = transport.AsyncRedisClient(ProducerSettings(redis_url=each_broker.url))
    store = FileStore(str(tmp_path))
    yield Files(FileRepository(client), store)
    await client.aclose()
    await store.aclose()


async def some(*data: bytes) -> AsyncIterator[bytes]:
    for chunk in data:
        yield chunk


async def uploaded(
    files: Files, *contents: bytes, owner: str = OWNER, purpose: str = "batch", **fields
) -> FileRecord:
    """A file with a part for each of the contents."""
    now_ms = await files.repository.now_ms()
    file_id = new_file_id(now_ms)
    parts = tuple(f"files/{file_id}-{number}" for number in range(len(contents)))
    await files.repository.reserve(*parts)
    for path, data in zip(parts, contents, strict=True):
        await files.store.write(path, some(data))
    record = FileRecord(
        file_id, owner, "name.jsonl", purpose, sum(map(len, contents)), now_ms // 1000, None, parts
    )
    record = replace(record, **fields)
    await files.repository.add(record)
    return record


async def read(files: Files, record: FileRecord, offset: int = 0) -> bytes:
    return b"".join([chunk async for chunk in files.content(record, offset=offset)])


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def garbage(broker: EmbeddedBroker) -> dict[bytes, float]:
    with redis.Redis(port=broker.port, protocol=2) as raw:
        return dict(raw.zrange(BulkKeys.GARBAGE, 0, -1, withscores=True))


def all_keys(broker: EmbeddedBroker) -> list[bytes]:
    with redis.Redis(port=broker.port, protocol=2) as raw:
        return list(raw.keys("*"))


async def test_parts_are_read_as_one(files: Files) -> None:
    record = await uploaded(files, b"abc", b"", b"defg")

    assert await read(files, record) == b"abcdefg"
    for offset in range(9):
        assert await read(files, record, offset) == b"abcdefg"[offset:]


async def test_adding_again_changes_nothing(files: Files, each_broker: EmbeddedBroker) -> None:
    record = await uploaded(files, b"ab")
    await files.repository.add(record)

    assert (await files.repository.list(OWNER)).records == [record]
    assert garbage(each_broker) == {}


async def test_a_deleted_file_leaves_nothing(
    files: Files, each_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    record = await uploaded(files, b"ab", b"cd", expires_at=2**40)

    await files.delete(OWNER, record.id)

    with pytest.raises(FileNotFound):
        await files.delete(OWNER, record.id)
    assert all_keys(each_broker) == []
    assert names(tmp_path) == []


async def test_an_expired_file_is_gone_and_swept(
    files: Files, each_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    # given
    now = await files.repository.now_ms() // 1000
    expired = await uploaded(files, b"ab", expires_at=now)
    kept = await uploaded(files, b"cd", expires_at=now + 3600)
    # then: before anybody sweeps
    with pytest.raises(FileNotFound):
        await files.repository.get(OWNER, expired.id)
    assert (await files.repository.list(OWNER)).records == [kept]
    # when
    assert await files.sweep() == 1
    # then
    assert names(tmp_path) == [f"{kept.id}-0"]
    assert BulkKeys.file(expired.id).encode() not in all_keys(each_broker)
    assert await read(files, kept) == b"cd"


async def test_what_nobody_has_finished_is_swept(
    files: Files, each_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    # given: one who has died while writing, one who still writes
    await files.repository.reserve("files/dead", until_ms=0)
    await files.store.write("files/dead", some(b"half"))
    await files.repository.reserve("files/alive")
    await files.store.write("files/alive", some(b"half"))
    # when
    assert await files.sweep() == 1
    # then
    assert names(tmp_path) == ["alive"]
    assert list(garbage(each_broker)) == [b"files/alive"]


async def test_two_who_sweep_do_not_do_the_same_work(files: Files) -> None:
    await files.repository.discard(["files/a", "files/b"])

    first = await files.repository.take_garbage(1)
    second = await files.repository.take_garbage(5)

    assert sorted([*first, *second]) == ["files/a", "files/b"]
    assert await files.repository.take_garbage(5) == []


async def test_a_file_that_somebody_has_deleted_behind_our_back_stops_no_sweep(
    files: Files, each_broker: EmbeddedBroker
) -> None:
    lost = await uploaded(files, b"ab", expires_at=1)
    expired = await uploaded(files, b"ab", expires_at=2)
    with redis.Redis(port=each_broker.port, protocol=2) as raw:
        raw.delete(BulkKeys.file(lost.id))

    assert await files.sweep() == 1

    assert BulkKeys.file(expired.id).encode() not in all_keys(each_broker)
    assert BulkKeys.EXPIRING.encode() not in all_keys(each_broker)


async def test_an_owner_keeps_no_more_files_and_bytes_than_its_quota(files: Files) -> None:
    # given
    limits = KeyLimits(max_files=3, max_stored_bytes=10)
    caller = Caller(OWNER, limits)
    now = await files.repository.now_ms() // 1000
    first = await uploaded(files, b"abcd")
    await files.repository.add(first, limits)  # a repeat
    await uploaded(files, b"efgh", expires_at=now)
    # then: bytes
    await files.repository.check_quota(caller, 2)
    with pytest.raises(QuotaExceeded, match="has 8, and the request needs 3 more"):
        await files.repository.check_quota(caller, 3)
    refused = replace(first, id=new_file_id(now), bytes=3)
    with pytest.raises(QuotaExceeded, match="delete files"):
        await files.repository.add(refused, limits)
    assert refused.id not in [record.id for record in (await files.repository.list(OWNER)).records]
    # and: those of another count for the other
    await files.repository.check_quota(Caller(OTHER, limits), 10)
    # when: one has expired, another is deleted
    await files.sweep()
    await files.repository.check_quota(caller, 6)
    await files.delete(OWNER, first.id)
    await files.repository.check_quota(caller, 10)
    # then: their number
    for _ in range(3):
        await uploaded(files, b"a")
    with pytest.raises(QuotaExceeded, match="may keep 3 files, and has 3"):
        await files.repository.check_quota(caller)
    with pytest.raises(QuotaExceeded):
        await files.repository.add(replace(refused, bytes=1), limits)
    # and: what nobody limits is kept
    await files.repository.add(refused)
