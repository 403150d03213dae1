"""A run of a batch in this process: from the first line that has no answer to the last."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, aclosing, suppress
from dataclasses import dataclass

from rose.errors import BrokerUnavailable
from rose_cli.batch.files import InputFile, OutputFiles, Paths, open_output
from rose_cli.batch.progress import View, make_view
from rose_cli.batch.standard_output import StandardOutput, standard_output
from rose_gateway.access.authentication import Caller
from rose_gateway.batches.line import Answer, Line
from rose_gateway.batches.line_processor import LineProcessor
from rose_gateway.batches.run import BatchRun
from rose_gateway.metrics import Metrics
from rose_gateway.services import Services, open_services
from rose_gateway.settings import GatewaySettings

#: Between two checkpoints, and two updates of the progress.
_SAVE_S = 1.0
_POLL_S = 0.2
#: Lines that may be answered before one that takes long; their answers wait in memory.
_AHEAD = 4096


@dataclass(frozen=True, slots=True)
class Outcome:
    lines: int
    succeeded: int
    failed: int
    done_before: int
    """lines that an earlier process has answered"""
    seconds: float
    """of this process"""


async def run_batch(
    settings: GatewaySettings, paths: Paths, *, window: int, overwrite: bool
) -> Outcome:
    """Answer each line of the input. Whoever cancels this may call it again, here or elsewhere.

    Raises:
        ConfigurationError: these files cannot be.
        BrokerUnavailable: Redis was not there at the beginning.
        OSError
    """
    began = time.monotonic()
    paths.check()
    source = await InputFile.examine(paths.input, settings.max_body_bytes)
    with _outputs(paths) as files:
        files.begin(source.sha256, overwrite=overwrite)
        before = files.done
        if before.lines < source.lines:
            async with open_services(settings, Metrics()) as services:
                await services.catalogue.models()  # a Redis that is not there is told at once
                await files.save()
                with make_view(source.lines, before) as view:
                    await _Pass(services, source, files, view, window).finish()
    done = files.done
    seconds = round(time.monotonic() - began, 3)
    return Outcome(done.lines, done.succeeded, done.failed, before.lines, seconds)


def _outputs(paths: Paths) -> AbstractContextManager[OutputFiles | StandardOutput]:
    return standard_output(paths.errors) if paths.to_stdout else open_output(paths)


class _Pass:
    """Over the lines that are left."""

    def __init__(
        self,
        services: Services,
        source: InputFile,
        files: OutputFiles | StandardOutput,
        view: View,
        window: int,
    ) -> None:
        self._source, self._files, self._view = source, files, view
        self._processor = LineProcessor(services, Caller(), files.done.batch_id)
        self._run = BatchRun(self._processor, window=window)
        self._room = asyncio.Semaphore(_AHEAD)
        self._begun: deque[Line] = deque()
        self._waiting: dict[int, Answer] = {}
        """answers whose turn has not come, by the number of the line"""
        self._ended = asyncio.Event()

    async def finish(self) -> None:
        """Raises: OSError"""
        keeping = asyncio.create_task(self._keep())
        try:
            async with (
                aclosing(self._source.after(self._files.done)) as lines,
                aclosing(self._run.answers(self._bounded(lines))) as answers,
            ):
                async for answer in answers:
                    self._waiting[answer.number] = answer
                    self._write()
                    await self._files.flowing()
                    if keeping.done():
                        break  # it cannot write
        finally:
            self._ended.set()
            await keeping

    async def _bounded(self, lines: AsyncIterator[Line]) -> AsyncGenerator[Line, None]:
        async for line in lines:
            await self._room.acquire()
            self._begun.append(Line(line.number, line.end, b""))
            yield line

    def _write(self) -> None:
        """The answers whose turn it is."""
        while self._begun and (answer := self._waiting.pop(self._begun[0].number, None)):
            self._files.write(self._begun.popleft(), answer)
            self._room.release()

    async def _keep(self) -> None:
        """Shows and saves what is done, until all is. Raises: OSError"""
        saved_at = time.monotonic()
        while not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._ended.wait()
            self._view.show(self._files.done, self._processor.trouble)
            if self._ended.is_set() or time.monotonic() - saved_at >= _SAVE_S:
                await self._save()
                saved_at = time.monotonic()

    async def _save(self) -> None:
        for answer in await self._files.save():
            with suppress(BrokerUnavailable):  # then it goes when it expires
                await answer.delivered()
