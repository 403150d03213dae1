"""One batch, run by this gateway to its end, or until another runner has it.

The runner may die at any line. What it has not registered is done again by the next one: the jobs
are in the queue under keys made from the batch and the line, so nothing runs twice, and what counts
as ended is a bit for each line, so nothing counts twice.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial

from rose import transport
from rose.errors import FileNotFound, StorageUnavailable
from rose_gateway.access.authentication import Caller
from rose_gateway.batches.cancellation import CancellationToken
from rose_gateway.batches.line import (
    Answer,
    Line,
    LineCounter,
    check_input,
    custom_id_of,
    read_lines,
    retry_while_unavailable,
)
from rose_gateway.batches.line_processor import LineProcessor
from rose_gateway.batches.parts import KINDS, PartStorer, Piece, Start, start_of
from rose_gateway.batches.run import BatchRun
from rose_gateway.batches.suspects import Suspects
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
from rose_gateway.turns import LARGE_BYTES

log = logging.getLogger("rose.gateway")

#: Cancellations are noticed within this time, though no line ends.
_RENEW_S = 1.0
#: So long after its time a batch that has not ended is given up with what it has stored.
_SLACK_MS = 7 * 86_400_000


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


class BatchExecution:
    """Belongs to one event loop."""

    def __init__(self, services: Services, repository: BatchRepository, lease: Lease) -> None:
        self._services = services
        self._repository = repository
        self._lease = lease
        self._run: BatchRun | None = None
        self._stop_code = ""
        """why no further line is begun: batch_cancelled, batch_expired; "" as long as lines are"""
        self._owner = ""
        self._is_settled = False
        self._counter = LineCounter(repository, lease, services.metrics, self._on_status)

    async def run(self) -> None:
        """Raises: ExceptionGroup: it cannot go on, and any runner may try."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                loops = [
                    self._tasks.create_task(self._keep_lease()),
                    self._tasks.create_task(self._counter.keep_flushing()),
                ]
                await self._run_to_end()
                for loop in loops:
                    loop.cancel()
        except* LeaseLost:
            log.info("batch %s is run by another gateway now", self._lease.batch_id)

    async def _run_to_end(self) -> None:
        """Raises: LeaseLost"""
        batch = await retry_while_unavailable(partial(self._repository.find, self._lease.batch_id))
        if batch is None or batch.ended:
            raise LeaseLost
        self._owner = batch.parameters.owner
        self._suspects = Suspects(self._repository, self._lease, batch)
        storer = PartStorer(
            self._services.files,
            self._repository,
            self._lease,
            self._counter,
            spawn=self._tasks.create_task,
            kept_until_ms=batch.parameters.expires_at * 1000 + _SLACK_MS,
        )
        await storer.load(readable_only=batch.outcome == "failed")
        if batch.outcome != "failed":
            try:
                get = self._services.files.repository.get
                source = await retry_while_unavailable(
                    partial(get, self._owner, batch.parameters.input_file_id)
                )
                if batch.total is None:
                    batch = await self._checked(batch, source)
                if batch.outcome != "failed":
                    await self._answer(batch, source, storer)
            except FileNotFound as error:
                await self._fail(Problem("input_file_gone", str(error), param="input_file_id"))
        await self._finish(batch, storer)

    async def _checked(self, batch: Batch, source: FileRecord) -> Batch:
        """With its lines counted. Raises: LeaseLost, FileNotFound"""
        async with aclosing(self._lines(source, Start(0, 1))) as lines:
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
        await self._services.turns.take_for(len(line.raw))
        async with self._suspects.preparing(line.number):
            return custom_id_of(line)

    async def _answer(self, batch: Batch, source: FileRecord, storer: PartStorer) -> None:
        """Until every line is answered and stored. Raises: LeaseLost"""
        left_s = await self._time_left_s(batch)
        if batch.status == "cancelling":
            self._stop_code = "batch_cancelled"
        elif left_s <= 0:
            self._stop_code = "batch_expired"
        ended = await retry_while_unavailable(partial(self._repository.ended_lines, batch.id))
        caller, endpoint = await self._caller(), batch.parameters.endpoint
        processor = BatchLineProcessor(
            self._services,
            caller,
            batch.id,
            endpoint=endpoint,
            ended=ended,
            suspects=self._suspects,
        )
        window, expires_at = self._services.settings.batch_window, time.time() + left_s
        async with aclosing(self._to_process(source, storer, processor)) as lines:
            while True:
                # After a stop those lines are processed once more that have ended before it.
                until = None if self._stop_code else expires_at
                self._run = run = BatchRun(processor, window=window, expires_at=until)
                async with aclosing(run.answers(lines)) as answers:
                    async for answer in answers:
                        await storer.add(answer)
                if not run.stopped:
                    break
                await self._stop(run.stopped)
        await storer.all_stored()

    async def _to_process(
        self, source: FileRecord, storer: PartStorer, processor: BatchLineProcessor
    ) -> AsyncGenerator[Line, None]:
        """The lines that are not stored. After a stop those that have not ended are answered here.

        Raises: LeaseLost
        """
        try:
            async with aclosing(self._lines(source, start_of(storer.stored))) as lines:
                async for line in lines:
                    if not await storer.begin(line):
                        continue
                    if not self._stop_code or processor.has_ended(line):
                        yield line
                        continue
                    if self._stop_code == "batch_expired":
                        await self._stop(self._stop_code)
                    await storer.add(processor.stopped_answer(line, self._stop_code))
                    await asyncio.sleep(0)  # there may be many
        except FileNotFound as error:  # the lines in flight are answered still
            await self._fail(Problem("input_file_gone", str(error), param="input_file_id"))
        storer.end_reading()

    async def _lines(self, source: FileRecord, start: Start) -> AsyncGenerator[Line, None]:
        """The storage may be away meanwhile. Raises: FileNotFound"""
        offset, first = start
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

    async def _finish(self, batch: Batch, storer: PartStorer) -> None:
        """Make files of the parts, and end the batch. Raises: LeaseLost"""
        parts = [part for _, part in sorted(storer.stored.items())]
        pieces = {kind: [p for part in parts for p in part.pieces(kind)] for kind in KINDS}
        now_ms = await retry_while_unavailable(self._repository.now_ms)
        ids = {kind: new_file_id(now_ms) if some else "" for kind, some in pieces.items()}
        advance = partial(self._repository.advance, self._lease, "in_progress", "finalizing")
        # A runner that died in between has given them ids already, and those stand.
        fields = {"output_file_id": ids["output"], "error_file_id": ids["errors"]}
        status = await retry_while_unavailable(partial(advance, files_at=now_ms // 1000, **fields))
        batch = await self._reread(batch)
        for kind, file_id in zip(KINDS, (batch.output_file_id, batch.error_file_id), strict=True):
            if file_id is not None:
                record = _file(batch, file_id, kind, pieces[kind])
                await retry_while_unavailable(partial(self._services.files.repository.add, record))
        outcome = "cancelled" if status == "cancelling" else batch.outcome or "completed"
        await retry_while_unavailable(partial(self._repository.finish, self._lease, outcome))
        log.info("batch %s is %s", batch.id, outcome)

    async def _fail(self, *problems: Problem) -> None:
        await retry_while_unavailable(
            partial(self._repository.settle, self._lease, "failed", problems)
        )

    async def _stop(self, code: str) -> None:
        """No further line is begun."""
        if code == "batch_expired" and not self._is_settled:
            self._is_settled = True
            await retry_while_unavailable(partial(self._repository.settle, self._lease, "expired"))
        self._stop_code = self._stop_code or code

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
        if status == "cancelling" and not self._stop_code:
            self._stop_code = "batch_cancelled"
            if self._run is not None:
                self._tasks.create_task(self._run.cancel())

    async def _keep_lease(self) -> None:
        """Raises: LeaseLost"""
        lease_s = self._services.settings.batch_lease_s
        while True:
            renew = partial(self._repository.renew, self._lease, lease_s=lease_s)
            self._on_status(await retry_while_unavailable(renew))
            if self._run is not None:
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
