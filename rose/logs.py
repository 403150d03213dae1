"""The log of a service: lines for people, or JSON for machines. Neither holds prompts or outputs.

A JSON line has `time`, `level`, `logger`, `message` and the fields of the service, `job` if it
concerns one (`extra={"job": id}`), and the fields that the call adds (`extra={"fields":
{...}}`). An exception is logged with its type and traceback, but without its text, which may
quote a prompt.

Whoever reads the lines may stop reading. No caller waits for it: a thread writes.
"""

import _thread
import contextlib
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import IO, Any

#: Lines that wait for whoever reads them. Those beyond are counted and left out.
_MAX_WAITING = 10_000
#: How soon a thread is tried again that could not be started.
_PAUSE_S = 1.0
#: How long the end of a process waits for the last lines.
_FLUSH_S = 2.0

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(
    level: str, form: str, fields: Mapping[str, str], *, exception_text: bool = True
) -> None:
    """Set up logging for the process, to standard error.

    `form`: text or json. `fields`: what every JSON line has. `exception_text`: False for a service
    whose exceptions may quote what others have sent; lines for people then lack it, too.
    """
    handler = BackgroundHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter(fields))
    else:
        handler.setFormatter(logging.Formatter(_TEXT) if exception_text else ReticentFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class BackgroundHandler(logging.Handler):
    """Writes lines in a thread of its own. Those that are lost are counted, and told once there is
    room again: nobody has read for long, or the stream or the memory failed."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream
        self._process = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._process != os.getpid():  # a fork has no thread, and its parent writes what waits
            self._process = os.getpid()
            self._lines: SimpleQueue[str] = SimpleQueue()
            self._writing = threading.Lock()
            self._given = self._written = self._lost = 0
            self._try_again_at = 0.0
        if not self._writing.locked():
            self._begin()
        try:
            line = self.format(record)
        except MemoryError:
            self._lost += 1
            return
        except Exception as error:  # noqa: BLE001 - a wrong call does not end its caller
            place = f"{record.pathname}, line {record.lineno}"
            line = f"{record.name}: a line is wrong ({type(error).__name__}): {place}"
        if self._lines.qsize() >= _MAX_WAITING:
            self._lost += 1
            return
        if self._lost:
            line = f"{_left_out(self._lost)}: nobody read them\n{line}"
            self._lost = 0
        self._given += 1
        self._lines.put(line)

    def flush(self) -> None:
        """Wait for the lines that are there, but not for long."""
        deadline = time.monotonic() + _FLUSH_S
        while self._process and self._written < self._given and time.monotonic() < deadline:
            time.sleep(0.002)

    def _begin(self) -> None:
        """Lines wait for a thread that cannot be started. `Thread.start` would wait, too, for one
        that ends before it says that it runs."""
        if time.monotonic() >= self._try_again_at:
            self._try_again_at = time.monotonic() + _PAUSE_S
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(self._write, ())

    def _write(self) -> None:
        if not self._writing.acquire(blocking=False):
            return
        failed = 0
        try:
            while True:
                line = self._lines.get()
                try:
                    if failed:
                        self._stream.write(f"{_left_out(failed)}: they could not be written\n")
                    self._stream.write(line + "\n")
                    self._stream.flush()
                    failed = 0
                except (OSError, ValueError, MemoryError):
                    failed += 1
                self._written += 1
        finally:
            self._writing.release()


def _left_out(count: int) -> str:
    return f"{count} lines of the log are left out"


class JsonFormatter(logging.Formatter):
    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
            **getattr(record, "fields", {}),
        }
        if (job_id := getattr(record, "job", None)) is not None:
            fields["job"] = job_id
        if record.exc_info and record.exc_info[0] is not None:
            error_type, _, trace = record.exc_info
            fields["exception"] = error_type.__name__
            fields["traceback"] = "".join(traceback.format_tb(trace))
        return json.dumps(fields, ensure_ascii=False)


class ReticentFormatter(logging.Formatter):
    """Lines for people. An exception is its type and where it was raised."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        error_type, _, trace = ei
        name = "" if error_type is None else error_type.__name__
        return "".join([*traceback.format_tb(trace), name])
