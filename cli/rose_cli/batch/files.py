"""The files of a run: input, output, errors, and the checkpoint beside the output."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

from rose.errors import ConfigurationError
from rose_cli.batch.checkpoint import Checkpoint
from rose_gateway.batches.line import Answer, Line, read_lines

_CHUNK = 1024 * 1024
#: An output that is no file.
STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class Paths:
    input: Path
    output: Path
    errors: Path

    @property
    def checkpoint(self) -> Path:
        return self.output.with_name(f"{self.output.name}.progress")

    @property
    def to_stdout(self) -> bool:
        return self.output == STDOUT

    def check(self) -> None:
        """Raises: ConfigurationError: two of them are one file."""
        given = (self.input, self.output, self.errors, self.checkpoint)
        if len({path.resolve() for path in given}) < len(given):
            raise ConfigurationError(
                f"input {self.input}, output {self.output} and errors {self.errors} must be "
                f"different files, and none of them {self.checkpoint}"
            )


@dataclass(frozen=True, slots=True)
class InputFile:
    path: Path
    sha256: str
    lines: int
    """without those that are blank"""
    max_line_bytes: int

    @classmethod
    async def examine(cls, path: Path, max_line_bytes: int) -> InputFile:
        """Reads it once. Raises: OSError"""
        sha256, lines = hashlib.sha256(), 0

        async def hashed() -> AsyncGenerator[bytes, None]:
            async for chunk in _chunks(path, 0):
                sha256.update(chunk)
                yield chunk

        async for _ in read_lines(hashed(), max_line_bytes=max_line_bytes):
            lines += 1
        return cls(path, sha256.hexdigest(), lines, max_line_bytes)

    def after(self, done: Checkpoint) -> AsyncGenerator[Line, None]:
        """Its lines behind a checkpoint. Raises: OSError"""
        return read_lines(
            _chunks(self.path, done.input_bytes),
            start=done.input_bytes,
            first=done.line + 1,
            max_line_bytes=self.max_line_bytes,
        )


async def _chunks(path: Path, start: int) -> AsyncGenerator[bytes, None]:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk


class OutputFiles:
    """Belongs to one event loop. Answers are written in the order of their lines."""

    def __init__(self, paths: Paths, output: BufferedRandom, errors: BufferedRandom) -> None:
        self._path = paths.checkpoint
        self._output, self._errors = output, errors
        self._unkept: list[Answer] = []
        self._saved: Checkpoint | None = None
        self.done: Checkpoint

    def begin(self, input_sha256: str, *, overwrite: bool) -> None:
        """Go on behind what was written before, or anew.

        Raises:
            ConfigurationError: they belong to something else.
            OSError
        """
        earlier = None if overwrite else Checkpoint.read(self._path)
        if earlier is None or not self._continues(earlier, input_sha256):
            if self._sizes != (0, 0) and not overwrite:
                raise ConfigurationError(
                    f"{self._output.name} or {self._errors.name} exists and has no answers to this "
                    "input, as it is now: choose another output, or say --overwrite"
                )
            earlier = Checkpoint.first(input_sha256)
        self._output.truncate(earlier.output_bytes)
        self._errors.truncate(earlier.error_bytes)
        for file in (self._output, self._errors):
            file.seek(0, os.SEEK_END)
        self.done = earlier

    def _continues(self, earlier: Checkpoint, input_sha256: str) -> bool:
        """Whether the files hold all that was written until this checkpoint."""
        output_bytes, error_bytes = self._sizes
        return (
            earlier.input_sha256 == input_sha256
            and output_bytes >= earlier.output_bytes
            and error_bytes >= earlier.error_bytes
        )

    @property
    def _sizes(self) -> tuple[int, int]:
        """Bytes of output and errors."""
        output, errors = (os.fstat(file.fileno()).st_size for file in (self._output, self._errors))
        return output, errors

    def write(self, line: Line, answer: Answer) -> None:
        """The answer to the next line. Raises: OSError"""
        record = answer.record + b"\n"
        (self._output if answer.succeeded else self._errors).write(record)
        self.done = self.done.after(line, len(record), succeeded=answer.succeeded)
        if answer.unkept is not None:
            self._unkept.append(answer)

    async def flowing(self) -> None:
        """At once: a file takes what is written."""

    async def save(self) -> list[Answer]:
        """Write the checkpoint. Returns answers that were not safe before, and whose jobs are to
        be deleted. Raises: OSError"""
        if self.done == self._saved:
            return []
        done, safe = self.done, self._unkept
        self._unkept = []
        for file in (self._output, self._errors):
            file.flush()
        await asyncio.to_thread(self._sync, done)
        self._saved = done
        return safe

    def _sync(self, done: Checkpoint) -> None:
        for file in (self._output, self._errors):
            os.fsync(file.fileno())
        done.write(self._path)


@contextmanager
def open_output(paths: Paths) -> Iterator[OutputFiles]:
    """Nobody else writes there meanwhile.

    Raises:
        ConfigurationError: somebody does.
        OSError
    """
    with opened(paths.output) as output, opened(paths.errors) as errors:
        try:
            fcntl.flock(output.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another run writes to {paths.output}") from None
        yield OutputFiles(paths, output, errors)


@contextmanager
def opened(path: Path) -> Iterator[BufferedRandom]:
    """For reading and writing; made where there is none."""
    with suppress(FileExistsError):
        path.open("xb").close()
    with path.open("r+b") as file:
        yield file
