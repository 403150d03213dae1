"""A run of a batch in this process: from the first line that has no answer to the last."""

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass

from rose_cli.batch.files import InputFile, Paths, open_output
from rose_cli.batch.progress import View, make_view
from rose_gateway.access.authentication import Caller
from rose_gateway.batches.line_processor import LineProcessor
from rose_gateway.batches.run import BatchRun
from rose_gateway.metrics import Metrics
from rose_gateway.services import open_services
from rose_gateway.settings import GatewaySettings

#: Between two updates of the progress.
_SHOW_S = 0.2


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
    with open_output(paths) as files:
        done = before = files.begin(source.sha256, overwrite=overwrite)
        if before.lines < source.lines:
            async with open_services(settings, Metrics()) as services:
                await services.catalogue.models()  # a Redis that is not there is told at once
                processor = LineProcessor(services, Caller(), before.batch_id)
                run = BatchRun(processor, files, before, window=window, stores_when_cancelled=True)
                with make_view(source.lines, before) as view:
                    showing = asyncio.create_task(_show(view, run, processor))
                    try:
                        async with aclosing(source.after(before)) as lines:
                            await run.finish(lines)
                    finally:
                        showing.cancel()
                        view.show(run.done, processor.trouble)
                done = run.done
    seconds = round(time.monotonic() - began, 3)
    return Outcome(done.lines, done.succeeded, done.failed, before.lines, seconds)


async def _show(view: View, run: BatchRun, processor: LineProcessor) -> None:
    while True:
        await asyncio.sleep(_SHOW_S)
        view.show(run.done, processor.trouble)
