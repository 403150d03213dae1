"""Files as Redis has them: names, quotas, expiry, and what is garbage."""

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rose import transport
from rose.errors import FileNotFound, QuotaExceeded
from rose.protocol.calls import Call
from rose.protocol.keys import BulkKeys
from rose_gateway import clock
from rose_gateway.access.authentication import Caller
from rose_gateway.scripts import own_script
from rose_gateway.settings import KeyLimits

FILE_ID = r"file-[0-9a-f]{32}"

#: Longer than anybody uploads one file.
_UPLOAD_MS = 86_400_000
#: Who was told of garbage has so long to delete it.
_GARBAGE_LEASE_S = 300.0
#: Files that are looked up in one round trip.
_PAGE_SIZE = 500

_FIELDS = ("owner", "filename", "purpose", "bytes", "created_at", "expires_at", "parts")
_ID = re.compile(FILE_ID)


@dataclass(frozen=True, slots=True)
class FileRecord:
    id: str
    owner: str
    """the id of an API key; "" where the gateway is open to all"""
    filename: str
    purpose: str
    bytes: int
    created_at: int
    """Unix seconds"""
    expires_at: int | None
    """Unix seconds"""
    parts: tuple[str, ...]
    """paths in the storage, in the order of the content"""


@dataclass(frozen=True, slots=True)
class FilePage:
    records: Sequence[FileRecord]
    has_more: bool


def new_file_id(created_ms: int) -> str:
    """Ids sort by time, and nobody can guess one."""
    return f"file-{created_ms:012x}{secrets.token_hex(10)}"


class FileRepository:
    """Belongs to one event loop. Every method raises BrokerUnavailable."""

    def __init__(self, redis: transport.AsyncRedisClient) -> None:
        self._redis = redis

    async def now_ms(self) -> int:
        """By Redis' clock, which is that of all times here. Unix milliseconds."""
        return await clock.now_ms(self._redis)

    async def reserve(self, *paths: str, until_ms: int | None = None) -> None:
        """Before these paths are written: they are deleted at this time, or a day later if it is
        not given, unless somebody has made them part of something."""
        if until_ms is None:
            until_ms = await self.now_ms() + _UPLOAD_MS
        await self._put_away(paths, until_ms)

    async def discard(self, paths: Iterable[str]) -> None:
        """These paths may be deleted, now."""
        await self._put_away(paths, 0)

    async def check_quota(self, caller: Caller, size: int = 0) -> None:
        """Raises: QuotaExceeded: there is no room for one more file, of this size."""
        if caller.limits.max_stored_bytes or caller.limits.max_files:
            (stored,) = await self._exchange(
                ("HMGET", BulkKeys.stored(caller.key_id), "files", "bytes")
            )
            _check_quota(caller.limits, stored, size)

    async def add(self, record: FileRecord, limits: KeyLimits | None = None) -> None:
        """From now on there is this file, and its parts are no garbage. A repeat does no harm.

        Raises: QuotaExceeded: its owner keeps too much. None is refused without `limits`.
        """
        fields: dict[str, str | int] = {
            "owner": record.owner,
            "filename": record.filename,
            "purpose": record.purpose,
            "bytes": record.bytes,
            "created_at": record.created_at,
            "expires_at": _text(record.expires_at),
            "parts": "\n".join(record.parts),
        }
        texts: list[str | int] = [text for pair in fields.items() for text in pair]
        limits = limits or KeyLimits()
        quota = [limits.max_files or 0, limits.max_stored_bytes or 0, record.bytes]
        args = [record.id, _text(record.expires_at), *quota, len(texts), *texts, *record.parts]
        refused = await self._run("add_file", _keys(record.id, record.owner, record.purpose), args)
        if refused:
            _check_quota(limits, refused, record.bytes)

    async def get(self, owner: str, file_id: str) -> FileRecord:
        """Raises: FileNotFound: no such file, or another's."""
        if _ID.fullmatch(file_id):
            time, values = await self._exchange(clock.TIME, _read(file_id))
            record = _record(file_id, values, clock.unix_ms(time))
            if record is not None and record.owner == owner:
                return record
        raise _not_found(file_id)

    async def list(
        self,
        owner: str,
        *,
        after: str | None = None,
        limit: int = 10_000,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> FilePage:
        """By age. `after`: those that follow this id, whose file need not be there any more."""
        index = BulkKeys.files(owner, purpose or "")
        descending = order == "desc"
        found: list[FileRecord] = []
        edge = f"({after}" if after else None
        while len(found) <= limit:
            count = min(_PAGE_SIZE, limit + 1 - len(found))
            if descending:
                bounds = ("ZREVRANGEBYLEX", index, edge or "+", "-")
            else:
                bounds = ("ZRANGEBYLEX", index, edge or "-", "+")
            (raw_ids,) = await self._exchange((*bounds, "LIMIT", 0, count))
            ids = [raw.decode() for raw in raw_ids]
            if not ids:
                break
            edge = f"({ids[-1]}"
            found += await self._records(ids)
        return FilePage(found[:limit], len(found) > limit)

    async def remove(self, owner: str, file_id: str) -> tuple[str, ...]:
        """Forget a file. Its parts are garbage now: delete them, then `forget` them.

        Raises: FileNotFound: no such file, or another's.
        """
        (purpose,) = (await self._exchange(("HMGET", BulkKeys.file(file_id), "purpose")))[0]
        keys = _keys(file_id, owner, (purpose or b"").decode())
        parts = await self._run("remove_file", keys, [file_id, owner])
        if parts is None:
            raise _not_found(file_id)
        return tuple(parts.decode().split("\n"))

    async def expired(self, limit: int) -> Sequence[FileRecord]:
        """Files whose time is over and that are still there."""
        now_ms = await self.now_ms()
        (raw_ids,) = await self._exchange(
            ("ZRANGEBYSCORE", BulkKeys.EXPIRING, "-inf", now_ms // 1000, "LIMIT", 0, limit)
        )
        ids = [raw.decode() for raw in raw_ids]
        if not ids:
            return []
        read = await self._exchange(*(_read(file_id) for file_id in ids))
        records = [_record(file_id, values, 0) for file_id, values in zip(ids, read, strict=True)]
        # Somebody else has deleted these.
        if lost := [file_id for file_id, record in zip(ids, records, strict=True) if not record]:
            await self._exchange(("ZREM", BulkKeys.EXPIRING, *lost))
        return [record for record in records if record]

    async def take_garbage(self, limit: int) -> Sequence[str]:
        """Paths to delete; then `forget` them. For a while nobody else is told of them."""
        args = [limit, round(_GARBAGE_LEASE_S * 1000)]
        paths = await self._run("take_garbage", [BulkKeys.GARBAGE], args)
        return [path.decode() for path in paths]

    async def forget(self, paths: Iterable[str]) -> None:
        """These are deleted."""
        if paths := tuple(paths):
            await self._exchange(("ZREM", BulkKeys.GARBAGE, *paths))

    async def _put_away(self, paths: Iterable[str], due_ms: int) -> None:
        if pairs := [text for path in paths for text in (due_ms, path)]:
            await self._exchange(("ZADD", BulkKeys.GARBAGE, *pairs))

    async def _records(self, ids: Sequence[str]) -> Sequence[FileRecord]:
        """Those that have not expired."""
        time, *read = await self._exchange(clock.TIME, *(_read(file_id) for file_id in ids))
        now_ms = clock.unix_ms(time)
        pairs = zip(ids, read, strict=True)
        return [record for file_id, values in pairs if (record := _record(file_id, values, now_ms))]

    async def _exchange(self, *commands: tuple[str | bytes | int, ...]) -> Sequence[Any]:
        with transport.broker_errors():
            return await self._redis.exchange(commands)

    async def _run(
        self, script: str, keys: Sequence[str], args: Sequence[str | bytes | int]
    ) -> Any:
        with transport.broker_errors():
            return await self._redis.run(Call(own_script(__package__, script), keys, args))


def _keys(file_id: str, owner: str, purpose: str) -> list[str]:
    return [
        BulkKeys.file(file_id),
        BulkKeys.files(owner),
        BulkKeys.files(owner, purpose),
        BulkKeys.EXPIRING,
        BulkKeys.GARBAGE,
        BulkKeys.stored(owner),
    ]


def _check_quota(limits: KeyLimits, stored: Sequence[bytes | None], size: int) -> None:
    """`stored`: how many files there are, and their bytes. Raises: QuotaExceeded"""
    files, used = (int(count or 0) for count in stored)
    if limits.max_files and files >= limits.max_files:
        raise QuotaExceeded(
            f"this API key may keep {limits.max_files} files, and has {files}: delete some"
        )
    if limits.max_stored_bytes and used + size > limits.max_stored_bytes:
        raise QuotaExceeded(
            f"this API key may keep {limits.max_stored_bytes} bytes of files, has {used}, and the "
            f"request needs {size} more: delete files"
        )


def _read(file_id: str) -> tuple[str, ...]:
    return ("HMGET", BulkKeys.file(file_id), *_FIELDS)


def _record(file_id: str, values: Sequence[bytes | None], now_ms: int) -> FileRecord | None:
    """None: there is none, or it has expired."""
    if any(value is None for value in values):
        return None
    owner, filename, purpose, size, created_at, expires_at, parts = (
        (value or b"").decode() for value in values
    )
    if expires_at and int(expires_at) * 1000 <= now_ms:
        return None
    return FileRecord(
        id=file_id,
        owner=owner,
        filename=filename,
        purpose=purpose,
        bytes=int(size),
        created_at=int(created_at),
        expires_at=int(expires_at) if expires_at else None,
        parts=tuple(parts.split("\n")),
    )


def _not_found(file_id: str) -> FileNotFound:
    return FileNotFound(
        f"there is no file {file_id[:128]!r}: it was never uploaded, was deleted, or has expired"
    )


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
