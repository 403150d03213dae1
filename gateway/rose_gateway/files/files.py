"""The files of a gateway: what Redis knows of them together with their content."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from rose.errors import FileNotFound, RoseError
from rose_gateway.errors import ApiError
from rose_gateway.metrics import Metrics
from rose_gateway.settings import KeyLimits
from rose_gateway.storage.file_repository import FileRecord, FileRepository, new_file_id
from rose_gateway.storage.file_store import FileStore


class ConcurrencyLimit:
    """Belongs to one event loop."""

    def __init__(self, slots: int) -> None:
        self._free = slots

    @contextmanager
    def slot(self, metrics: Metrics) -> Iterator[None]:
        """Raises: ApiError: 503: all are taken."""
        if not self._free:
            metrics.limit_hit("downloads")
            raise ApiError(
                503,
                "the server has as many downloads as it can: try again",
                type="server_error",
                code="server_busy",
                retry_after_s=1.0,
            )
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


log = logging.getLogger("rose.gateway")

#: Between two looks for what has expired, and for garbage.
_SWEEP_S = 60.0
_PAGE_SIZE = 100
#: At a time. Each holds some MiB, more with an object store than with a folder.
_MAX_DOWNLOADS = 64


@dataclass(frozen=True, slots=True)
class Files:
    repository: FileRepository
    store: FileStore
    downloads: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(_MAX_DOWNLOADS))

    async def content(self, record: FileRecord, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Chunks of at most 1 MiB. An offset is cheap where the file has one part, as uploads do.

        Raises: FileGone, StorageUnavailable
        """
        single = len(record.parts) == 1
        skip = 0 if single else offset
        for path in record.parts:
            async with aclosing(self.store.read(path, offset=offset if single else 0)) as chunks:
                async for chunk in chunks:
                    if skip >= len(chunk):
                        skip -= len(chunk)
                        continue
                    yield chunk[skip:]
                    skip = 0

    async def create(
        self,
        chunks: AsyncGenerator[bytes, None],
        now_ms: int,
        limits: KeyLimits,
        record_of: Callable[[str, str, int], FileRecord],
    ) -> FileRecord:
        """Write a file; what is refused in the end leaves nothing. `record_of`: its record, by its
        id, its path and its size in bytes.

        Raises: what `chunks` or `record_of` raise; QuotaExceeded, StorageUnavailable,
            BrokerUnavailable
        """
        file_id = new_file_id(now_ms)
        path = f"files/{file_id}"
        await self.repository.reserve(path)
        try:
            async with aclosing(chunks):
                size = await self.store.write(path, chunks)
            record = record_of(file_id, path, size)
            await self.repository.add(record, limits)
        except Exception:
            with suppress(RoseError):  # then it is left to the sweeps
                await self.discard([path])
            raise
        return record

    async def delete(self, owner: str, file_id: str) -> None:
        """Raises: FileNotFound, BrokerUnavailable"""
        await self.discard(await self.repository.remove(owner, file_id))

    async def discard(self, paths: Iterable[str]) -> None:
        """Delete content that no file has. What cannot be deleted now is left to the sweeps.

        Raises: BrokerUnavailable
        """
        paths = tuple(paths)
        await self.repository.discard(paths)
        with suppress(RoseError):
            await self._delete(paths)

    async def sweep(self) -> int:
        """Forget files that have expired, and delete garbage. Returns how many paths were deleted.

        Raises: BrokerUnavailable, StorageUnavailable
        """
        while expired := await self.repository.expired(_PAGE_SIZE):
            for record in expired:
                with suppress(FileNotFound):  # another gateway was faster
                    await self.repository.remove(record.owner, record.id)
        deleted = 0
        while garbage := await self.repository.take_garbage(_PAGE_SIZE):
            await self._delete(garbage)
            deleted += len(garbage)
        return deleted

    async def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            await self.store.delete(path)
            await self.repository.forget([path])


@asynccontextmanager
async def swept(files: Files) -> AsyncGenerator[None, None]:
    """Meanwhile expired files and garbage are deleted, every minute or so."""
    sweeping = asyncio.create_task(_sweep(files))
    try:
        yield
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)


async def _sweep(files: Files) -> None:
    while True:
        # Gateways that start together do not look together.
        await asyncio.sleep(_SWEEP_S * random.uniform(0.5, 1.5))  # noqa: S311
        try:
            deleted = await files.sweep()
        except RoseError as error:
            log.warning("files were not swept: %s", error)
        except Exception:
            log.exception("files were not swept")
        else:
            if deleted:
                log.info("%d expired or unfinished files were deleted", deleted)
