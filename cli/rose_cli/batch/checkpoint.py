"""How far a run has come, in a file beside its output."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rose.errors import ConfigurationError
from rose_gateway.batches.line import Line

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All lines up to here have their answers in the files, and nothing else is there."""

    batch_id: str
    """names the jobs of its lines: whoever goes on finds those that were under way"""
    input_sha256: str
    line: int = 0
    """the number of the last one of them"""
    input_bytes: int = 0
    output_bytes: int = 0
    error_bytes: int = 0
    succeeded: int = 0
    failed: int = 0

    @classmethod
    def first(cls, input_sha256: str) -> Checkpoint:
        return cls(f"batch_{secrets.token_hex(12)}", input_sha256)

    @property
    def lines(self) -> int:
        """Without those that are blank."""
        return self.succeeded + self.failed

    def after(self, line: Line, size: int, *, succeeded: bool) -> Checkpoint:
        """With the answer to the next line, of `size` bytes."""
        return replace(
            self,
            line=line.number,
            input_bytes=line.end,
            output_bytes=self.output_bytes + (size if succeeded else 0),
            error_bytes=self.error_bytes + (0 if succeeded else size),
            succeeded=self.succeeded + succeeded,
            failed=self.failed + (not succeeded),
        )

    @classmethod
    def read(cls, path: Path) -> Checkpoint | None:
        """None where there is none.

        Raises:
            ConfigurationError: somebody else has written there.
        """
        foreign = ConfigurationError(
            f"{path} is not what this version of the command writes: delete it with the output "
            "beside it, or say --overwrite"
        )
        try:
            fields = json.loads(path.read_bytes())
            version = fields.pop("version")
            checkpoint = cls(**fields)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise foreign from None
        if version != _VERSION:
            raise foreign
        return checkpoint

    def write(self, path: Path) -> None:
        """In one move, and on the disk when this returns. Raises: OSError"""
        fresh = path.with_name(f"{path.name}.new")
        with fresh.open("w") as file:
            json.dump({"version": _VERSION, **asdict(self)}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
