"""The files of a run: input, output, errors, and the checkpoint beside the output."""

import asyncio
import fcntl
import hashlib
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedRandom
from pathlib import Path
from typing import Self

from rose.errors import ConfigurationError, MalformedMessage
from rose_gateway.batches.line import Line, read_lines
from rose_gateway.batches.run import Checkpoint, Piece

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
    async def examine(cls, path: Path, max_line_bytes: int) -> Self:
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
    """Answers and errors in files, with a checkpoint beside them."""

    every_s = 1.0

    def __init__(self, path: Path, output: BufferedRandom, errors: BufferedRandom) -> None:
        """`path`: of the checkpoint."""
        self._path = path
        self._output, self._errors = output, errors

    def begin(self, input_sha256: str, *, overwrite: bool) -> Checkpoint:
        """Go on behind what was written before, or anew.

        Raises:
            ConfigurationError: they belong to something else.
            OSError
        """
        earlier = None if overwrite else self._earlier()
        if earlier is None or not self._continues(earlier, input_sha256):
            if any(map(_size, (self._output, self._errors))) and not overwrite:
                raise ConfigurationError(
                    f"{self._output.name} or {self._errors.name} exists and has no answers to this "
                    "input, as it is now: choose another output, or say --overwrite"
                )
            earlier = _first(input_sha256)
        for file, pieces in ((self._output, earlier.output), (self._errors, earlier.errors)):
            file.truncate(_bytes(pieces))
            file.seek(0, os.SEEK_END)
        return self._store(earlier)

    async def store(
        self, checkpoint: Checkpoint, output: Sequence[bytes], errors: Sequence[bytes]
    ) -> Checkpoint:
        """Raises: OSError"""
        return await asyncio.to_thread(self._store, checkpoint, output, errors)

    def _store(
        self, checkpoint: Checkpoint, output: Sequence[bytes] = (), errors: Sequence[bytes] = ()
    ) -> Checkpoint:
        """On the disk when this returns, the checkpoint last and in one move."""
        for file, records in ((self._output, output), (self._errors, errors)):
            file.writelines(record + b"\n" for record in records)
            file.flush()
            os.fsync(file.fileno())
        output_piece, errors_piece = (
            (Piece(file.name, _size(file)),) for file in (self._output, self._errors)
        )
        checkpoint = replace(checkpoint, output=output_piece, errors=errors_piece)
        fresh = self._path.with_name(f"{self._path.name}.new")
        with fresh.open("wb") as written:
            written.write(checkpoint.encode())
            written.flush()
            os.fsync(written.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return checkpoint

    def _earlier(self) -> Checkpoint | None:
        """Raises: ConfigurationError: somebody else has written there."""
        try:
            return Checkpoint.decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except MalformedMessage:
            raise ConfigurationError(
                f"{self._path} is not what this version of the command writes: delete it with the "
                "output beside it, or say --overwrite"
            ) from None

    def _continues(self, earlier: Checkpoint, input_sha256: str) -> bool:
        """Whether the files hold all that was written until this checkpoint."""
        return (
            earlier.input == input_sha256
            and _size(self._output) >= _bytes(earlier.output)
            and _size(self._errors) >= _bytes(earlier.errors)
        )


class StandardOutput:
    """Answers on stdout. There is no checkpoint: what a pipe has taken is not there to go on
    behind."""

    every_s = 0.0

    def __init__(self, descriptor: int, errors: BufferedRandom) -> None:
        self._descriptor, self._errors = descriptor, errors

    def begin(self, input_sha256: str, *, overwrite: bool) -> Checkpoint:
        """Raises: ConfigurationError: the error file holds something. OSError"""
        if not overwrite and _size(self._errors):
            raise ConfigurationError(
                f"{self._errors.name} exists and is not empty: choose another file for lines "
                "without an answer, or say --overwrite"
            )
        self._errors.truncate(0)
        return _first(input_sha256)

    async def store(
        self, checkpoint: Checkpoint, output: Sequence[bytes], errors: Sequence[bytes]
    ) -> Checkpoint:
        """Raises: OSError"""
        # A thread waits for the reader, not the event loop.
        await asyncio.to_thread(self._write, output, errors)
        return checkpoint

    def _write(self, output: Sequence[bytes], errors: Sequence[bytes]) -> None:
        left = memoryview(b"".join(record + b"\n" for record in output))
        while left:
            left = left[os.write(self._descriptor, left) :]
        self._errors.writelines(record + b"\n" for record in errors)
        self._errors.flush()


@contextmanager
def open_output(paths: Paths) -> Iterator[OutputFiles | StandardOutput]:
    """Nobody else writes there meanwhile.

    Raises:
        ConfigurationError: somebody does.
        OSError
    """
    with _opened(paths.errors) as errors:
        if paths.to_stdout:
            sys.stdout.flush()
            yield StandardOutput(sys.stdout.fileno(), errors)
            return
        with _opened(paths.output) as output:
            try:
                fcntl.flock(output.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(f"another run writes to {paths.output}") from None
            yield OutputFiles(paths.checkpoint, output, errors)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedRandom]:
    """For reading and writing; made where there is none."""
    with suppress(FileExistsError):
        path.open("xb").close()
    with path.open("r+b") as file:
        yield file


def _first(input_sha256: str) -> Checkpoint:
    return Checkpoint(f"batch_{secrets.token_hex(12)}", input_sha256)


def _size(file: BufferedRandom) -> int:
    return os.fstat(file.fileno()).st_size


def _bytes(pieces: Sequence[Piece]) -> int:
    return sum(piece.bytes for piece in pieces)
