"""A run whose answers go to stdout. It leaves no checkpoint: what a pipe has taken is not there to
go on behind."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path

from rose.errors import ConfigurationError
from rose_cli.batch.checkpoint import Checkpoint
from rose_cli.batch.files import opened
from rose_gateway.batches.line import Answer, Line

#: What waits for a reader who is slower than the answers.
_MAX_WAITING = 1024 * 1024


class StandardOutput:
    """As `OutputFiles`."""

    def __init__(self, descriptor: int, errors: BufferedRandom) -> None:
        self._descriptor, self._errors = descriptor, errors
        self._waiting = bytearray()
        self._writing = asyncio.Lock()
        self._unkept: list[Answer] = []
        self.done: Checkpoint

    def begin(self, input_sha256: str, *, overwrite: bool) -> None:
        """Raises: ConfigurationError: the error file holds something. OSError"""
        if not overwrite and os.fstat(self._errors.fileno()).st_size:
            raise ConfigurationError(
                f"{self._errors.name} exists and is not empty: choose another file for lines "
                "without an answer, or say --overwrite"
            )
        self._errors.truncate(0)
        self.done = Checkpoint.first(input_sha256)

    def write(self, line: Line, answer: Answer) -> None:
        """The answer to the next line. Raises: OSError"""
        record = answer.record + b"\n"
        if answer.succeeded:
            self._waiting += record
        else:
            self._errors.write(record)
        self.done = self.done.after(line, len(record), succeeded=answer.succeeded)
        if answer.unkept is not None:
            self._unkept.append(answer)

    async def flowing(self) -> None:
        """Until the reader has taken enough. Raises: OSError"""
        if len(self._waiting) > _MAX_WAITING:
            await self._flush()

    async def save(self) -> list[Answer]:
        """Returns answers that stdout has taken since the last time, and whose jobs are to be
        deleted. Raises: OSError"""
        safe, self._unkept = self._unkept, []
        await self._flush()
        self._errors.flush()
        return safe

    async def _flush(self) -> None:
        async with self._writing:  # a thread waits for the reader, not the event loop
            taken, self._waiting = bytes(self._waiting), bytearray()
            await asyncio.to_thread(self._write_all, taken)

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]


@contextmanager
def standard_output(errors: Path) -> Iterator[StandardOutput]:
    """Raises: OSError"""
    sys.stdout.flush()
    with opened(errors) as file:
        yield StandardOutput(sys.stdout.fileno(), file)
