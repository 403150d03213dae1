"""One batch, run by this gateway to its end, or until another runner has it.

The runner may die at any line. What it has not stored is done again by the next one: the jobs are
in the queue under keys made from the batch and the line, so nothing runs twice, and what counts as
ended is a bit for each line, so nothing counts twice.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial

from rose import transport
from rose.errors import FileNotFound, MalformedMessage, StorageUnavailable
from rose_gateway.access.authentication import Caller
from rose_gateway.batches.line import (
    Answer,
    Line,
    check_input,
    custom_id_of,
    read_lines,
    retry_while_unavailable,
)
from rose_gateway.batches.line_processor import CancellationToken, LineProcessor
from rose_gateway.batches.run import BatchRun, Checkpoint, Piece
from rose_gateway.pacing import LARGE_BYTES
from rose_gateway.services import Services
from rose_gateway.storage.batch_repository import (
    Batch,
    BatchRepository,
    Lease,
    LeaseLost,
    Problem,
    Status,
)
from rose_gateway.storage.file_repository import FileRecord, new_file_id

log = logging.getLogger("rose.gateway")

#: Cancellations are noticed within this time, though no line ends.
_RENEW_S = 1.0
#: Between two counts of lines that have ended.
_COUNT_S = 0.2
#: So long after its time a batch that has not ended is given up with what it has stored.
_SLACK_MS = 7 * 86_400_000
#: Ends of runners while they prepared one line. An end may have another cause.
_MAX_FAILURES = 3


class Suspects:
    """Lines that may be why runners go without a word: killed for memory, or hung.

    Once that has happened to a batch, its lines are prepared one at a time, and Redis knows which.
    A line that was being prepared at several such ends is answered with an error, unread.

    Of one batch under one lease. Belongs to one event loop.
    """

    def __init__(self, repository: BatchRepository, lease: Lease, batch: Batch) -> None:
        self._repository = repository
        self._lease = lease
        self._careful = batch.lapses > 0
        self._given_up = {
            number for number, times in batch.line_failures.items() if times >= _MAX_FAILURES
        }
        self._one_at_a_time = asyncio.Lock()

    def given_up(self, number: int) -> bool:
        return number in self._given_up

    @asynccontextmanager
    async def preparing(self, number: int) -> AsyncGenerator[None, None]:
        """Raises: LeaseLost"""
        if not self._careful:
            yield
            return
        async with self._one_at_a_time:
            await self._note(number)
            try:
                yield
            finally:
                await self._note(None)

    async def _note(self, number: int | None) -> None:
        await retry_while_unavailable(partial(self._repository.prepare, self._lease, number))


class BatchLineProcessor(LineProcessor):
    """Knows which lines have ended under earlier runners. They were counted by how they ended, so
    the answers of their jobs are read even after a cancellation."""

    def __init__(
        self,
        services: Services,
        caller: Caller,
        batch_id: str,
        *,
        endpoint: str,
        ended: bytes,
        suspects: Suspects,
    ) -> None:
        """`ended`: a bit for each line, that of line 1 first."""
        super().__init__(services, caller, batch_id, endpoint=endpoint)
        self._ended = ended
        self._suspects = suspects

    def has_ended(self, line: Line) -> bool:
        byte, bit = divmod(line.number - 1, 8)
        return byte < len(self._ended) and bool(self._ended[byte] & 0x80 >> bit)

    async def process(self, line: Line, cancellation: CancellationToken) -> Answer:
        if self._suspects.given_up(line.number):
            return self.given_up_answer(line)
        return await super().process(
            line, CancellationToken() if self.has_ended(line) else cancellation
        )

    def preparing(self, line: Line) -> AbstractAsyncContextManager[None]:
        return self._suspects.preparing(line.number)


class StoredAnswers:
    """Keeps the answers of a batch in the storage, and counts its lines. Belongs to one event
    loop."""

    every_s = math.inf

    def __init__(
        self,
        services: Services,
        repository: BatchRepository,
        lease: Lease,
        on_status: Callable[[Status], None],
        *,
        kept_until_ms: int,
    ) -> None:
        """`on_status`: called with the batch's status after each count. `kept_until_ms`: pieces
        that no file has by then may be deleted."""
        self._services = services
        self._repository = repository
        self._lease = lease
        self._on_status = on_status
        self._kept_until_ms = kept_until_ms
        self._successes: list[int] = []
        self._failures: list[int] = []
        self._counting = asyncio.Lock()

    def add(self, answer: Answer) -> None:
        """Its line is counted soon."""
        (self._successes if answer.succeeded else self._failures).append(answer.number)

    async def keep_counting(self) -> None:
        """Raises: LeaseLost"""
        while True:
            await asyncio.sleep(_COUNT_S)
            await self.count()

    async def count(self) -> None:
        """When it returns, all that was added before is counted. Raises: LeaseLost"""
        async with self._counting:
            successes, self._successes = self._successes, []
            failures, self._failures = self._failures, []
            if successes or failures:
                count = partial(self._repository.count_lines, self._lease, successes, failures)
                counts = await retry_while_unavailable(count)
                self._services.metrics.batch_lines_ended(counts.completed, counts.failed)
                self._on_status(counts.status)

    async def store(
        self, checkpoint: Checkpoint, output: Sequence[bytes], errors: Sequence[bytes]
    ) -> Checkpoint:
        """Raises: LeaseLost"""
        stored = replace(
            checkpoint,
            output=checkpoint.output + await self._written("output", checkpoint.line, output),
            errors=checkpoint.errors + await self._written("errors", checkpoint.line, errors),
        )
        await self.count()
        register = partial(self._repository.register, self._lease, stored.encode())
        await retry_while_unavailable(partial(register, until_ms=self._kept_until_ms))
        return stored

    async def _written(self, kind: str, line: int, records: Sequence[bytes]) -> tuple[Piece, ...]:
        """The claim is in the name: a runner that has lost the batch may still be writing."""
        if not records:
            return ()
        claim = f"{self._lease.epoch}-{self._lease.runner.rpartition('-')[2]}"
        path = f"batches/{self._lease.batch_id}/{kind}-{line:08d}-{claim}.jsonl"
        files = self._services.files
        reserve = partial(files.repository.reserve, path, until_ms=self._kept_until_ms)
        await retry_while_unavailable(reserve)
        size = await retry_while_unavailable(lambda: files.store.write(path, _lines_of(records)))
        return (Piece(path, size),)


async def _lines_of(records: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for record in records:
        yield record + b"\n"


class BatchExecution:
    """Belongs to one event loop."""

    def __init__(self, services: Services, repository: BatchRepository, lease: Lease) -> None:
        self._services = services
        self._repository = repository
        self._lease = lease
        self._cancellation = CancellationToken()
        self._owner = ""
        self._answers = False
        """its lines are being answered"""

    async def run(self) -> None:
        """Raises: ExceptionGroup: it cannot go on, and any runner may try."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                keeping = self._tasks.create_task(self._keep_lease())
                await self._run_to_end()
                keeping.cancel()
        except* LeaseLost:
            log.info("batch %s is run by another gateway now", self._lease.batch_id)

    async def _run_to_end(self) -> None:
        """Raises: LeaseLost"""
        batch = await retry_while_unavailable(partial(self._repository.find, self._lease.batch_id))
        if batch is None or batch.ended:
            raise LeaseLost
        self._owner = batch.parameters.owner
        self._suspects = Suspects(self._repository, self._lease, batch)
        checkpoint = await self._checkpoint(batch)
        if batch.outcome != "failed":
            try:
                get = self._services.files.repository.get
                source = await retry_while_unavailable(
                    partial(get, self._owner, batch.parameters.input_file_id)
                )
                if batch.total is None:
                    batch = await self._checked(batch, source)
                if batch.outcome != "failed":
                    checkpoint = await self._answered(batch, source, checkpoint)
            except FileNotFound as error:
                await self._fail(Problem("input_file_gone", str(error), param="input_file_id"))
        await self._finish(batch, checkpoint)

    async def _checkpoint(self, batch: Batch) -> Checkpoint:
        """Where the last runner has left off. Raises: MalformedMessage"""
        first = Checkpoint(batch.id, batch.parameters.input_file_id)
        raw = await retry_while_unavailable(partial(self._repository.checkpoint, batch.id))
        try:
            return Checkpoint.decode(raw) if raw else first
        except MalformedMessage:  # somebody else has written there
            if batch.outcome != "failed":
                raise
            return first

    async def _checked(self, batch: Batch, source: FileRecord) -> Batch:
        """With its lines counted. Raises: LeaseLost, FileNotFound"""
        async with aclosing(self._lines(source, 0, 1)) as lines:
            check = await check_input(
                lines,
                max_lines=self._services.settings.max_batch_lines,
                custom_id_of=self._custom_id_of,
            )
        if check.problems:
            await self._fail(*check.problems)
        else:
            advance = partial(self._repository.advance, self._lease, "validating", "in_progress")
            await retry_while_unavailable(partial(advance, total=check.total))
        return await self._reread(batch)

    async def _custom_id_of(self, line: Line) -> str | None:
        """Raises: LeaseLost"""
        if len(line.raw) <= LARGE_BYTES:
            return custom_id_of(line)
        if self._suspects.given_up(line.number):
            return None
        await self._services.pacer.wait_for(len(line.raw))
        async with self._suspects.preparing(line.number):
            return custom_id_of(line)

    async def _answered(
        self, batch: Batch, source: FileRecord, checkpoint: Checkpoint
    ) -> Checkpoint:
        """Until every line is answered and stored. Raises: LeaseLost"""
        if batch.status == "cancelling":
            self._cancellation.cancel("batch_cancelled")
        left_s = await self._time_left_s(batch)
        if left_s <= 0:
            await self._expire(0)
        ended = await retry_while_unavailable(partial(self._repository.ended_lines, batch.id))
        processor = BatchLineProcessor(
            self._services,
            await self._caller(),
            batch.id,
            endpoint=batch.parameters.endpoint,
            ended=ended,
            suspects=self._suspects,
        )
        answers = StoredAnswers(
            self._services,
            self._repository,
            self._lease,
            self._on_status,
            kept_until_ms=batch.parameters.expires_at * 1000 + _SLACK_MS,
        )
        run = BatchRun(
            processor,
            answers,
            checkpoint,
            window=self._services.settings.batch_window,
            cancellation=self._cancellation,
            on_answer=answers.add,
        )
        beside = [self._tasks.create_task(answers.keep_counting())]
        if left_s > 0:
            beside.append(self._tasks.create_task(self._expire(left_s)))
        self._answers = True
        async with aclosing(self._lines_after(source, checkpoint)) as lines:
            await run.finish(lines)
        for task in beside:
            task.cancel()
        return run.done

    async def _lines_after(
        self, source: FileRecord, checkpoint: Checkpoint
    ) -> AsyncGenerator[Line, None]:
        """Raises: LeaseLost"""
        lines = self._lines(source, checkpoint.input_bytes, checkpoint.line + 1)
        try:
            async with aclosing(lines):
                async for line in lines:
                    yield line
        except FileNotFound as error:  # the lines in flight are answered still
            await self._fail(Problem("input_file_gone", str(error), param="input_file_id"))

    async def _expire(self, after_s: float) -> None:
        """No further line is begun. Raises: LeaseLost"""
        await asyncio.sleep(after_s)
        await retry_while_unavailable(partial(self._repository.settle, self._lease, "expired"))
        self._cancellation.cancel("batch_expired")

    async def _lines(
        self, source: FileRecord, offset: int, first: int
    ) -> AsyncGenerator[Line, None]:
        """From this byte on, which begins the line with this number. The storage may be away
        meanwhile. Raises: FileNotFound"""
        outage = transport.Outage(transport.BATCH)
        while True:
            chunks = self._services.files.content(source, offset=offset)
            try:
                async with aclosing(chunks):
                    cut = read_lines(
                        chunks,
                        start=offset,
                        first=first,
                        max_line_bytes=self._services.settings.max_body_bytes,
                    )
                    async with aclosing(cut) as lines:
                        async for line in lines:
                            yield line
                            offset, first = line.end, line.number + 1
                            outage.end()
            except StorageUnavailable as error:
                pause_s = outage.next_pause_s(error)
            else:
                return
            await asyncio.sleep(pause_s)

    async def _finish(self, batch: Batch, checkpoint: Checkpoint) -> None:
        """Make files of the pieces, and end the batch. Raises: LeaseLost"""
        kinds = {"output": checkpoint.output, "errors": checkpoint.errors}
        now_ms = await retry_while_unavailable(self._repository.now_ms)
        ids = {kind: new_file_id(now_ms) if pieces else "" for kind, pieces in kinds.items()}
        advance = partial(self._repository.advance, self._lease, "in_progress", "finalizing")
        # A runner that died in between has given them ids already, and those stand.
        fields = {"output_file_id": ids["output"], "error_file_id": ids["errors"]}
        status = await retry_while_unavailable(partial(advance, files_at=now_ms // 1000, **fields))
        batch = await self._reread(batch)
        given = (batch.output_file_id, batch.error_file_id)
        for (kind, pieces), file_id in zip(kinds.items(), given, strict=True):
            if file_id is not None:
                record = _file(batch, file_id, kind, pieces)
                await retry_while_unavailable(partial(self._services.files.repository.add, record))
        outcome = "cancelled" if status == "cancelling" else batch.outcome or "completed"
        await retry_while_unavailable(partial(self._repository.finish, self._lease, outcome))
        log.info("batch %s is %s", batch.id, outcome)

    async def _fail(self, *problems: Problem) -> None:
        await retry_while_unavailable(
            partial(self._repository.settle, self._lease, "failed", problems)
        )

    async def _reread(self, batch: Batch) -> Batch:
        """As it is now. Raises: LeaseLost"""
        current = await retry_while_unavailable(partial(self._repository.find, batch.id))
        if current is None:
            raise LeaseLost
        return current

    async def _time_left_s(self, batch: Batch) -> float:
        return (
            batch.parameters.expires_at
            - await retry_while_unavailable(self._repository.now_ms) / 1000
        )

    async def _caller(self) -> Caller:
        """On whose behalf it runs; what a revoked key has asked for is cancelled."""
        if not self._owner:
            return Caller()
        key = await retry_while_unavailable(partial(self._services.keys.of_id, self._owner))
        if key is None:
            await retry_while_unavailable(
                partial(self._repository.cancel, self._owner, self._lease.batch_id)
            )
            return Caller(self._owner)
        return Caller(key.id, key.limits, key.tenant)

    def _on_status(self, status: Status) -> None:
        """`status`: of the batch, as Redis has it."""
        if status == "cancelling":
            self._cancellation.cancel("batch_cancelled")

    async def _keep_lease(self) -> None:
        """Raises: LeaseLost"""
        lease_s = self._services.settings.batch_lease_s
        while True:
            renew = partial(self._repository.renew, self._lease, lease_s=lease_s)
            self._on_status(await retry_while_unavailable(renew))
            if self._answers:
                await self._caller()
            await asyncio.sleep(min(_RENEW_S, lease_s / 3))


def _file(batch: Batch, file_id: str, kind: str, pieces: Sequence[Piece]) -> FileRecord:
    parameters = batch.parameters
    created_at = batch.files_at or parameters.created_at
    kept_s = parameters.output_expires_s
    return FileRecord(
        id=file_id,
        owner=parameters.owner,
        filename=f"{batch.id}_{'output' if kind == 'output' else 'error'}.jsonl",
        purpose="batch_output",
        bytes=sum(piece.bytes for piece in pieces),
        created_at=created_at,
        expires_at=None if kept_s is None else created_at + kept_s,
        parts=tuple(piece.path for piece in pieces),
    )
